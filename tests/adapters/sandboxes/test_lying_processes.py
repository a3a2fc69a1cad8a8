"""The process of a program, if somebody broke out into it: what it says, and what it can reach.

The kinds of lies are those of test_hostile_answers.py, where code answers for its kernel.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.machine_speed import slowness
from tests.support.memory import PeakMemory

from antiphon.adapters.sandboxes.confined_python import ConfinedProcess, ConfinedPython
from antiphon.adapters.sandboxes.quickjs import MAX_LINE_BYTES, ProgramLimits, QuickjsPrograms
from antiphon.application.ports import CallOutcome, ProgramCall, ProgramSource, ProgramStep
from antiphon.domain.errors import SandboxError
from antiphon.testing.programs import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bwrap here"),
]

MEMORY_BYTES = 512 * 1024**2
MAX_GROWTH_BYTES = 100 * 1024**2
MAX_LOOP_S = 0.1
SOURCE = ProgramSource(code="return 6 * 7", tools=("find",))

SAY = """
import os, time
def say(line):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
def hear():
    return sys.stdin.buffer.readline()
hear()
"""
CALL = """b'{"calls":[["find","{}"]]}\\n'"""

INVALID: Mapping[str, str] = {
    "nothing": r"say(b'\n')",
    "no JSON": r"say(b'oops\n')",
    "a list": r"say(b'[]\n')",
    "half of it": r"say(b'{\n')",
    "a BOM": r"""say(b'\xef\xbb\xbf{"result":"x"}\n')""",
    "another encoding": r"""say('{"result":"x"}'.encode('utf-16') + b'\n')""",
    "no UTF-8": r"""say(b'{"result": "\xff"}\n')""",
    "half a character": r"""say(b'{"result": "\\ud800"}\n')""",
    "nested lists": r"say(b'[' * 10**6 + b'\n')",
    "nested objects": r"""say(b'{"x":' * 10**6 + b'\n')""",
    "a long number": r"""say(b'{"is_error":' + b'9' * 10**6 + b'}\n')""",
    "a number as a result": r"""say(b'{"result":7}\n')""",
    "a text as an error": r"""say(b'{"is_error":"yes"}\n')""",
    "a number as calls": r"""say(b'{"calls":7}\n')""",
    "a number as arguments": r"""say(b'{"calls":[["find",7]]}\n')""",
    "a call of three parts": r"""say(b'{"calls":[["find","{}","id"]]}\n')""",
    "too many calls at once": r"""say(b'{"calls":[' + b'["find","{}"],' * 32 + b'["f",""]]}\n')""",
    "a million calls at once": r"""say(b'{"calls":[' + b'["",""],' * 10**6 + b'["",""]]}\n')""",
    "a long name": r"""say(b'{"calls":[["' + b'f' * 300 + b'","{}"]]}\n')""",
    "long arguments": r"""say(b'{"calls":[["find","' + b'x' * 2 * 10**6 + b'"]]}\n')""",
    "a long result": r"""say(b'{"result":"' + b'x' * 10**6 + b'"}\n')""",
}
"""What a process says that is no answer."""

ENDS: Mapping[str, tuple[str, str]] = {
    "it ends": ("sys.exit(0)", "The process ended."),
    "it fails": ("raise ValueError", "The process ended."),
    "half a line, and it ends": ("say(b'{'); sys.exit(0)", "The process ended."),
    "a line that never ends": ("while True: say(b'x' * 65536)", "The process wrote too much."),
    "a line that is too long": (
        "say(b'\"' + b'x' * 17 * 1024**2 + b'\"\\n')",
        "The process wrote too much.",
    ),
    "lines that never end": (
        "while True: say(b'{}' + b' ' * 10**6)",
        "The process wrote too much.",
    ),
    "calls that never end": (
        f"while True: say({CALL}); hear()",
        "The program made more calls than it may.",
    ),
}
"""What a process does, and why it is stopped."""

SLOW: Mapping[str, str] = {
    "silence": "time.sleep(60)",
    "half a line": """say(b'{"result":'); time.sleep(60)""",
    "drops": "while True: say(b' '); time.sleep(0.01)",
    "a closed input": "os.close(0); time.sleep(60)",
    "a closed output": "os.close(1); time.sleep(60)",
}
"""Processes that do not answer in time."""

ANSWERS: Mapping[str, tuple[str, str]] = {
    "more than there is": (
        r"""say(b'{"result":"x","calls":[],"tenant":"other","id":"1","__proto__":{}}\n')""",
        "x",
    ),
    "a result twice": (r"""say(b'{"result":"x"}\n{"result":"y"}\n')""", "x"),
    "a key twice": (r"""say(b'{"result":"x","result":"y"}\n')""", "y"),
    "noise beside it": (
        r"""sys.stderr.write('x' * 10**7); say(b'{"result":"x"}\n')""",
        "x",
    ),
    "a result before the outcome": (
        r"""say(b'{"calls":[["find","{}"]]}\n{"result":"x"}\n'); time.sleep(60)""",
        "x",
    ),
    "a result with its calls": (
        r"""say(b'{"calls":[["find","{}"]],"result":"x"}\n'); hear(); say(b'{"result":"y"}\n')""",
        "y",
    ),
    "control characters": (r"""say(b'{"result":"\\u0000\\u001b[2J"}\n')""", "\x00\x1b[2J"),
}
"""What is an answer all the same, with the result of the program: it could say that anyway."""


class LyingPrograms(QuickjsPrograms):
    """Programs whose process does as it likes."""

    def __init__(self, lie: str, **limits: Any) -> None:
        super().__init__(ProgramLimits(**limits))
        self._lie = lie

    async def start_process(self, source: ProgramSource) -> tuple[ConfinedProcess, bytes]:
        python = ConfinedPython(["json"], memory_bytes=MEMORY_BYTES, cpu_s=4)
        process = await python.open(SAY + self._lie)
        try:
            return process, await process.ask(b"{}", max_bytes=MAX_LINE_BYTES)
        except BaseException:
            await process.aclose()
            raise


async def end_of(programs: QuickjsPrograms, source: ProgramSource = SOURCE) -> ProgramStep:
    """Run a program to its end; each of its calls returns null."""
    program = programs.open("us", source)
    outcomes: list[CallOutcome] = []
    try:
        while (step := await program.advance(outcomes)).calls:
            outcomes += [CallOutcome("null", is_json=True)] * len(step.calls)
        return step
    finally:
        await program.aclose()


@asynccontextmanager
async def cheap() -> AsyncIterator[None]:
    """Check that what is done costs this process little memory, and never holds its loop for long:
    in time of its processor, since others may be busy too."""

    async def watch() -> None:
        nonlocal longest_s
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.thread_time() - before_s)

    longest_s = 0.0
    memory = PeakMemory()
    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        await asyncio.sleep(0.001)
        watching.cancel()
    assert longest_s < MAX_LOOP_S * slowness()
    assert memory.growth_bytes() < MAX_GROWTH_BYTES


async def test_an_answer_that_is_none_ends_the_program_and_nothing_else() -> None:
    for lie in INVALID.values():
        programs = LyingPrograms(lie)
        with pytest.raises(SandboxError, match="invalid answer"):
            async with cheap():
                await end_of(programs)
        await programs.aclose()


@pytest.mark.parametrize("lie", ENDS)
async def test_a_process_that_misbehaves_is_stopped(lie: str) -> None:
    code, reason = ENDS[lie]
    programs = LyingPrograms(code, calls=20)
    with pytest.raises(SandboxError, match=reason):
        async with cheap():
            await end_of(programs)
    await programs.aclose()


async def test_a_process_that_does_not_answer_is_stopped_in_time() -> None:
    async def check(lie: str) -> None:
        programs = LyingPrograms(lie, step_s=1.5)
        step = await end_of(programs)
        assert step.result in (
            "Error: the program took more than 1.5 seconds.",
            "Error: the program was stopped.",
        )
        await programs.aclose()

    async with cheap():
        await asyncio.gather(*map(check, SLOW.values()))


@pytest.mark.parametrize("lie", ANSWERS)
async def test_what_is_an_answer_is_taken_as_one(lie: str) -> None:
    code, result = ANSWERS[lie]
    programs = LyingPrograms(code)
    assert await end_of(programs) == ProgramStep(result=result)
    await programs.aclose()


async def test_names_and_arguments_of_calls_are_what_the_process_says() -> None:
    """What becomes of them is for who makes the calls: they are checked there."""
    programs = LyingPrograms(r"""say(b'{"calls":[["\\u0000secret","no JSON"]]}\n'); hear()""")
    step = await run(programs, SOURCE)
    assert step.calls == (ProgramCall("\0secret", "no JSON"),)
    await programs.aclose()


# --- what nothing can interrupt -------------------------------------------------------------------

NATIVE: Sequence[str] = (
    "return [].reverse.call({ length: 2 ** 53 - 1 })",
    "return new Array(2 ** 28).join('xxxxxxxx')",
    "try { [].copyWithin.call({ length: 2 ** 53 - 1 }, 0, 1) } finally { return 'more' }",
    "for (;;) { try { 'a'.repeat(1e7).indexOf('a'.repeat(5e6) + 'b') } catch {} }",
    "const all = new Uint8Array(3e7); for (;;) all.fill(1)",
    "const all = new Float64Array(5e6); for (;;) all.sort()",
    "const all = new Array(2e6).fill(0); return all.filter(() => all.includes(1))",
    "const all = []; all[2 ** 32 - 2] = 1; return all.join('')",
    "for (;;) eval('1'.repeat(1e6))",
    "const a = 3n ** 50000n; for (;;) a.toString()",
)
"""Programs that stay in functions of the engine, which ask nobody whether to go on."""

TRIED = int(os.environ.get("ANTIPHON_TEST_NATIVE_LOOPS", "2"))


async def test_a_program_in_a_function_of_the_engine_ends_at_its_limit_of_time() -> None:
    programs = QuickjsPrograms(ProgramLimits(cpu_s=1, step_s=60, steps=2))
    sources = [ProgramSource(code=code) for code in NATIVE[:TRIED]]
    async with cheap():
        steps = await asyncio.gather(*[end_of(programs, source) for source in sources])
    told = ProgramStep(result="Error: the program computed for more than 1 seconds.", is_error=True)
    assert list(steps) == [told] * len(sources)
    assert await end_of(programs) == ProgramStep(result="42")
    await programs.aclose()


@pytest.mark.parametrize(
    "code",
    [
        "throw 'x'.repeat(2e7)",
        "throw new Error('\\u0001'.repeat(1e7))",
        "return '\\u0001'.repeat(262000)",
        "for (;;) text('\\u0800')",
        "tools.find({ a: '\\u0001'.repeat(170000) })",
        "for (let n = 0; n < 200; n++) tools.find({ a: 'x'.repeat(30000) })",
        "for (let n = 0; n < 2000; n++) tools.nope({})",
    ],
)
async def test_what_a_program_says_costs_the_server_little(code: str) -> None:
    programs = QuickjsPrograms(ProgramLimits(cpu_s=1, calls=100))
    async with cheap():
        step = await end_of(programs, ProgramSource(code=code, tools=("find",)))
    assert len(step.result) < 300_000
    await programs.aclose()
