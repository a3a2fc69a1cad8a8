"""Contract tests for the port `Programs`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations

import pytest

from antiphon.application.ports import (
    CallOutcome,
    ProgramCall,
    Programs,
    ProgramSource,
    ProgramStep,
)

US = "us"
NOW = 1_700_000_000
ROUNDS = """
const first = await Promise.all(["a", "b"].map((name) => tools.find({ name, at: Math.random() })));
const second = await tools.find({ name: first.join(""), at: Date.now() });
text(second, Math.random());
"""
OUTCOMES = [CallOutcome("x"), CallOutcome("y"), CallOutcome('{"n": 1}', is_json=True)]

FAILING = {
    "throw new Error('on purpose')": "on purpose",
    "text('before'); null.field": "before",
    "const = 1": "SyntaxError",
    "await new Promise(() => {})": "",
    "while (true) {}": "",
    "for (;;) await 1": "",
    "const all = []; for (;;) all.push('x'.repeat(1000) + all.length)": "",
    "const again = () => again(); again()": "",
    "throw null": "",
    "throw { toString() { throw 1 } }": "",
    "Object.prototype.toJSON = () => { throw 1 }; Promise.prototype.then = null; await 1": "",
}
"""Programs that fail, each with a part of its result."""

GONE = ("fetch", "require", "process", "std", "os", "Deno", "setTimeout", "performance")


async def run(
    programs: Programs, source: ProgramSource, outcomes: Sequence[CallOutcome] = ()
) -> ProgramStep:
    """Return the step that a new program takes after these outcomes."""
    program = programs.open(US, source)
    try:
        return await program.advance(outcomes)
    finally:
        await program.aclose()


@pytest.mark.asyncio
class ProgramsContract:
    """Subclass it where pytest collects tests. Its programs are JavaScript.

    It checks what models and clients rely on. That no program gets out is for your own tests.

    class TestMyPrograms(ProgramsContract):
        @pytest_asyncio.fixture
        async def programs(self):
            programs = MyPrograms()
            await programs.start()
            yield programs
            await programs.aclose()
    """

    @pytest.fixture
    def programs(self) -> Programs:
        raise NotImplementedError("override this fixture: return what runs programs, started")

    async def test_a_program_returns_what_it_writes(self, programs: Programs) -> None:
        code = "text('a', { b: 1 }); console.log('c', 2); return [3];"
        step = await run(programs, ProgramSource(code=code))
        assert step == ProgramStep(result='a\n{"b":1}\nc 2\n[3]')
        assert await run(programs, ProgramSource(code="")) == ProgramStep()

    async def test_it_waits_for_the_calls_that_it_has_begun(self, programs: Programs) -> None:
        source = ProgramSource(code=ROUNDS, tools=("find",), now=NOW)
        step = await run(programs, source)
        assert [call.name for call in step.calls] == ["find", "find"]
        assert (await run(programs, source, OUTCOMES[:1])).calls == step.calls
        [call] = (await run(programs, source, OUTCOMES[:2])).calls
        assert call == ProgramCall("find", f'{{"name":"xy","at":{NOW}000}}')
        step = await run(programs, source, OUTCOMES)
        assert step.calls == ()
        assert step.result.startswith('{"n":1}\n0.')

    async def test_it_takes_the_same_steps_however_it_is_repeated(self, programs: Programs) -> None:
        source = ProgramSource(code=ROUNDS, tools=("find",), seed="s", now=NOW)
        steps = [await run(programs, source, OUTCOMES[:count]) for count in range(4)]
        for count in range(4):
            for cuts in combinations(range(4), count):
                program = programs.open(US, source)
                for cut in cuts:
                    assert await program.advance(OUTCOMES[:cut]) == steps[cut]
                await program.aclose()

    async def test_its_chance_follows_from_the_seed(self, programs: Programs) -> None:
        code = "return [Math.random(), Math.random()]"
        sources = [ProgramSource(code=code, seed=seed) for seed in ("a", "a", "b")]
        first, again, other = [await run(programs, source) for source in sources]
        assert first == again
        assert first != other

    async def test_its_clock_stands_still(self, programs: Programs) -> None:
        code = "return [Date.now(), new Date().getTime(), new Date(5).getTime()]"
        step = await run(programs, ProgramSource(code=code, now=NOW))
        assert step.result == f"[{NOW}000,{NOW}000,5]"

    @pytest.mark.parametrize(
        ("outcome", "read"),
        [
            (CallOutcome('{"a": [1]}', is_json=True), '{"a":[1]}'),
            (CallOutcome('{"a": [1]}'), '"{\\"a\\": [1]}"'),
            (CallOutcome("null", is_json=True), "null"),
            (CallOutcome("\u2028 ä \x00"), '"\u2028 ä \\u0000"'),
        ],
    )
    async def test_an_outcome_is_a_text_or_a_value(
        self, programs: Programs, outcome: CallOutcome, read: str
    ) -> None:
        code = "return JSON.stringify(await tools.find({}))"
        step = await run(programs, ProgramSource(code=code, tools=("find",)), [outcome])
        assert step == ProgramStep(result=read)

    async def test_a_call_that_fails_throws(self, programs: Programs) -> None:
        code = "try { await tools.find({}) } catch (error) { return error.message }"
        source = ProgramSource(code=code, tools=("find",))
        outcome = CallOutcome("There is none.", is_error=True)
        assert await run(programs, source, [outcome]) == ProgramStep(result="There is none.")
        step = await run(
            programs, ProgramSource(code="await tools.find({})", tools=("find",)), [outcome]
        )
        assert step.is_error
        assert "There is none." in step.result

    async def test_it_calls_the_tools_that_it_may_and_no_others(self, programs: Programs) -> None:
        code = "try { await tools.other({}) } catch (error) { text('no') } await tools.get_x(1)"
        step = await run(programs, ProgramSource(code=code, tools=("get-x",)))
        assert step.calls == (ProgramCall("get-x", "1"),)

    async def test_calls_that_nobody_awaits_are_made(self, programs: Programs) -> None:
        source = ProgramSource(code="tools.find({}); return 'end'", tools=("find",))
        assert (await run(programs, source)).calls == (ProgramCall("find", "{}"),)
        assert await run(programs, source, OUTCOMES[:1]) == ProgramStep(result="end")

    @pytest.mark.parametrize("code", FAILING)
    async def test_a_program_that_fails_says_so(self, programs: Programs, code: str) -> None:
        step = await run(programs, ProgramSource(code=code, tools=("find",)))
        assert step.is_error
        assert FAILING[code] in step.result
        assert step.result.strip()

    @pytest.mark.parametrize("code", ["return 'x'.repeat(50_000_000)", "text('x'.repeat(5e6))"])
    async def test_what_it_writes_has_a_bound(self, programs: Programs, code: str) -> None:
        step = await run(programs, ProgramSource(code=code))
        assert step.is_error
        assert len(step.result) < 2_000_000

    async def test_its_calls_have_bounds(self, programs: Programs) -> None:
        code = "await Promise.all(Array.from({ length: 5000 }, () => tools.find({})))"
        step = await run(programs, ProgramSource(code=code, tools=("find",)))
        assert step.is_error or 0 < len(step.calls) < 5000
        code = "await tools.find({ text: 'x'.repeat(5e6) })"
        assert (await run(programs, ProgramSource(code=code, tools=("find",)))).is_error

    async def test_it_reaches_nothing_but_its_tools(self, programs: Programs) -> None:
        names = ", ".join(f"typeof {name}" for name in GONE)
        step = await run(programs, ProgramSource(code=f"return [{names}]"))
        assert set(json.loads(step.result)) == {"undefined"}
        assert (await run(programs, ProgramSource(code="await import('fs')"))).is_error

    async def test_programs_know_nothing_of_each_other(self, programs: Programs) -> None:
        code = "globalThis.seen = (globalThis.seen ?? 0) + 1; await tools.find({}); return seen"
        source = ProgramSource(code=code, tools=("find",))
        one, other = programs.open(US, source), programs.open("them", source)
        for program in (one, other):
            await program.advance(())
        results = [await program.advance(OUTCOMES[:1]) for program in (one, other)]
        assert [step.result for step in results] == ["1", "1"]
        for program in (one, other):
            await program.aclose()
            await program.aclose()
