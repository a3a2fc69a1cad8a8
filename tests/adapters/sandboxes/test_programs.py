"""Programs in QuickJS: the contract, repeats that are cut anywhere, and odd processes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.adapters.sandboxes import quickjs_process
from antiphon.adapters.sandboxes.quickjs import ProgramLimits, QuickjsPrograms
from antiphon.application.ports import (
    CallOutcome,
    ProgramCall,
    Programs,
    ProgramSource,
    ProgramStep,
)
from antiphon.domain.errors import SettingsError
from antiphon.testing.programs import OUTCOMES, ROUNDS, ProgramsContract, run

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bwrap here")

SOURCE = ProgramSource(code=ROUNDS, tools=("find",))


async def started(**limits: Any) -> QuickjsPrograms:
    programs = QuickjsPrograms(ProgramLimits(cpu_s=1, memory_bytes=16 * 1024**2, **limits))
    await programs.start()
    return programs


class TestQuickjsPrograms(ProgramsContract):
    @pytest.fixture
    async def programs(self) -> AsyncIterator[Programs]:
        programs = await started()
        yield programs
        await programs.aclose()


# --- a program that is repeated -------------------------------------------------------------------

CHAINS = """
const run = async (chain, place) => {
  let last = null;
  for (const [n, name] of chain.entries()) {
    try {
      last = await tools[name]({ place, n, last, at: Math.random() });
    } catch (error) {
      last = error.message;
      if (n % 2) await Promise.race(chain.map((_, m) => tools.log({ place, m })));
    }
  }
  return last;
};
text(await Promise.all(PLAN.map(run)));
"""
LIMITS: Mapping[str, Any] = {
    "memory_bytes": 16 << 20,
    "stack_bytes": 256 << 10,
    "cpu_s": 10,
    "calls": 1000,
    "parallel": 3,
    "arguments": 10_000,
    "output": 100_000,
    "error": 1000,
    "lines": 2,
    "timed_out": "Error: no time is left.",
}
HARNESS = Path(quickjs_process.__file__).with_name("quickjs_harness.js").read_text("utf-8")


def outcome_of(call: Sequence[str]) -> dict[str, Any]:
    """Return the outcome of a call: each depends on all of its arguments."""
    name, arguments = call
    text = str(sum(map(ord, name + arguments)))
    return {"text": text, "is_json": len(text) % 2 == 0, "is_error": text.endswith("3")}


class Repeated:
    """A program, in this process, from its start: the steps that it takes, one after another."""

    def __init__(self, code: str, seed: int) -> None:
        self._program = quickjs_process.ConfinedProgram(dict(LIMITS), HARNESS)
        source = {"code": code, "tools": ["find", "log"], "seed": seed, "now": 1}
        self.steps = [json.loads(self._program.run("begin", source))]

    def go_on(self, rounds: int) -> list[Any]:
        while len(self.steps) <= rounds and (calls := self.steps[-1].get("calls")):
            outcomes = list(map(outcome_of, calls))
            self.steps.append(json.loads(self._program.run("settle", outcomes)))
        return self.steps


@settings(max_examples=60, deadline=None)
@given(
    plan=st.lists(st.lists(st.sampled_from(["find", "log", "nope"]), max_size=4), max_size=5),
    seed=st.integers(0, 2**32 - 1),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
def test_a_program_that_is_cut_anywhere_and_repeated_makes_the_same_calls(
    plan: list[list[str]], seed: int, cuts: list[int]
) -> None:
    code = CHAINS.replace("PLAN", json.dumps(plan))
    whole = Repeated(code, seed).go_on(1000)
    assert "result" in whole[-1]
    for cut in cuts:
        part = Repeated(code, seed).go_on(cut)
        assert part == whole[: len(part)]
        assert Repeated(code, seed).go_on(1000) == whole


async def test_a_program_whose_process_made_room_for_others_goes_on() -> None:
    programs = await started(processes=1)
    running = [programs.open(tenant, SOURCE) for tenant in ("a", "b", "c")]
    for program in running:
        await program.advance(())
    results = [await program.advance(OUTCOMES) for program in running]
    assert len({step.result for step in results}) == 1
    assert results[0].result.startswith('{"n":1}')
    await programs.aclose()


def children() -> set[int]:
    """Return the processes that this one has started and that run."""
    own = Path("/proc/self").resolve().name
    return set(map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split()))


async def test_processes_that_wait_are_bounded_and_end_with_the_server() -> None:
    programs = await started(processes=2)
    before = children()
    running = [programs.open("a", SOURCE) for _ in range(5)]
    for program in running:
        await program.advance(())
    assert len(children() - before) == 2
    await programs.aclose()
    assert children() - before == set()


async def test_a_step_that_takes_too_long_by_the_clock_ends() -> None:
    programs = QuickjsPrograms(ProgramLimits(cpu_s=30, step_s=0.3))
    step = await run(programs, ProgramSource(code="while (true) {}"))
    assert step == ProgramStep(
        result="Error: the program took more than 0.3 seconds.", is_error=True
    )
    await programs.aclose()


async def test_programs_of_one_tenant_delay_no_other_tenant() -> None:
    programs = await started(steps=2)
    endless = ProgramSource(code="while (true) {}")
    busy = [asyncio.create_task(run(programs, endless)) for _ in range(4)]
    async with asyncio.timeout(50):
        theirs = programs.open("them", ProgramSource(code="return 1"))
        assert await theirs.advance(()) == ProgramStep(result="1")
        assert not all(task.done() for task in busy)
        ends = await asyncio.gather(*busy)
    assert all(step.is_error for step in ends)
    await programs.aclose()


async def test_a_program_that_is_left_ends_with_its_process() -> None:
    programs = await started()
    before = children()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await run(programs, ProgramSource(code="while (true) {}"))
    assert children() - before == set()
    await programs.aclose()


# --- texts of all sizes ---------------------------------------------------------------------------


async def test_arguments_stay_text_whatever_they_hold() -> None:
    programs = await started()
    code = "await tools.find({ text: '\\ud800', zero: '\\0', line: '\\u2028\\n' })"
    [call] = (await run(programs, ProgramSource(code=code, tools=("find",)))).calls
    assert call == ProgramCall("find", '{"text":"\\ud800","zero":"\\u0000","line":"\u2028\\n"}')
    await programs.aclose()


async def test_a_step_has_only_so_many_bytes_of_arguments() -> None:
    programs = await started()
    code = """
        const text = "\\u0001".repeat(140_000);
        await Promise.all([1, 2, 3].map(() => tools.find({ text })));
    """
    source = ProgramSource(code=code, tools=("find",))
    steps = [await run(programs, source, OUTCOMES[:count]) for count in range(4)]
    assert [len(step.calls) for step in steps] == [1, 1, 1, 0]
    assert not steps[3].is_error
    await programs.aclose()


async def test_outcomes_of_all_sizes_are_taken() -> None:
    programs = await started()
    outcomes = [CallOutcome("x" * 2_000_000)]
    source = ProgramSource(code="return (await tools.find({})).length", tools=("find",))
    assert await run(programs, source, outcomes) == ProgramStep(result="2000000")
    too_large = [CallOutcome("x" * 40_000_000)]
    assert (await run(programs, source, too_large)).is_error
    await programs.aclose()


async def test_without_bubblewrap_a_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SettingsError, match="apt-get install bubblewrap"):
        await QuickjsPrograms().start()
