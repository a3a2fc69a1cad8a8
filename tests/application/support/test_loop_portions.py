"""Work on the event loop runs in portions, and tenants take turns."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from antiphon.application.support.loop_portions import LoopPortions
from antiphon.testing.loop_turns import LoopTurns, count_turns

PORTION_S = 0.005


class Work:
    """Work that takes as long as a portion, and notes in which iteration of the loop it ran."""

    def __init__(self, turns: LoopTurns, portion_s: float = PORTION_S) -> None:
        self._turns = turns
        self.done: list[tuple[str, int]] = []
        self._portions = LoopPortions(portion_s)

    async def _compute(self, name: str, seconds: float) -> str:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        self.done.append((name, self._turns.count))
        return name

    async def run(self, name: str, seconds: float = PORTION_S) -> str:
        return await self._portions.run(name[0], partial(self._compute, name, seconds))


async def test_long_work_takes_an_iteration_each_and_tenants_take_turns() -> None:
    names = [f"a{number}" for number in range(5)] + ["b0"]
    async with count_turns() as turns:
        work = Work(turns)
        assert await asyncio.gather(*map(work.run, names)) == names
    assert [name for name, _ in work.done] == ["a0", "a1", "b0", "a2", "a3", "a4"]
    assert len({iteration for _, iteration in work.done}) == len(names)


async def test_short_work_runs_at_once() -> None:
    async with count_turns() as turns:
        work = Work(turns, portion_s=60)  # a busy machine must not end it
        await asyncio.gather(*(work.run(f"a{number}", seconds=0) for number in range(50)))
    assert len({iteration for _, iteration in work.done}) == 1


async def test_work_that_waits_holds_up_nothing_and_gives_its_result() -> None:
    portions, event = LoopPortions(PORTION_S), asyncio.Event()

    async def wait() -> str:
        await event.wait()
        await asyncio.sleep(0)
        return "waited"

    waiting = asyncio.create_task(portions.run("a", wait))
    await asyncio.sleep(0)
    assert await portions.run("a", partial(asyncio.sleep, 0, "next")) == "next"
    event.set()
    assert await waiting == "waited"


async def test_an_error_goes_to_the_caller_and_the_next_goes_on() -> None:
    portions = LoopPortions(1e-9)

    async def fail() -> None:
        raise ValueError

    tasks = [asyncio.create_task(portions.run("a", fail)) for _ in range(3)]
    tasks[1].cancel()
    await asyncio.sleep(0)
    tasks[2].cancel()
    assert await portions.run("a", partial(asyncio.sleep, 0, "next")) == "next"
    with pytest.raises(ValueError, match="^$"):
        await tasks[0]
