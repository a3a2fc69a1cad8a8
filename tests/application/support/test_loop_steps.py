"""Long work on the event loop runs in steps, and tenants take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from antiphon.application.support.loop_steps import LoopSteps
from antiphon.testing.loop_turns import count_turns


async def test_tenants_take_turns_step_by_step() -> None:
    done: list[str] = []

    def work(name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            done.append(name)
            yield

    steps = LoopSteps()
    await asyncio.gather(
        steps.run("a", work("a1", 3)), steps.run("a", work("a2", 1)), steps.run("b", work("b", 3))
    )
    assert sorted(done) == ["a1"] * 3 + ["a2"] + ["b"] * 3
    assert max(done.index("b"), done[::-1].index("b")) <= 2  # from the start to the end


async def test_others_run_between_two_steps() -> None:
    async with count_turns() as turns:
        await LoopSteps().run("a", iter(range(10)))
    assert turns.count >= 10


async def test_the_error_of_a_step_is_raised_and_the_next_work_runs() -> None:
    def fail() -> Iterator[None]:
        yield
        raise ValueError("no")

    steps = LoopSteps()
    with pytest.raises(ValueError, match="no"):
        await steps.run("a", fail())
    async with asyncio.timeout(5):
        await steps.run("a", iter(range(2)))
