"""A coroutine that is started without a task has the effect of one that is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from antiphon.application.support.tasks import start_eagerly

Run = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]


async def await_plainly(coroutine: Coroutine[Any, Any, None]) -> None:
    await coroutine


async def start_then_await(coroutine: Coroutine[Any, Any, None]) -> None:
    if (rest := start_eagerly(coroutine)) is not None:
        await rest


WAYS = pytest.mark.parametrize("run", [await_plainly, start_then_await])


@WAYS
@pytest.mark.parametrize("waits", range(4))
async def test_it_runs_to_its_end(run: Run, waits: int) -> None:
    done: list[int] = []

    async def work() -> None:
        for number in range(waits):
            await asyncio.sleep(0.0001 * (number % 2))
            done.append(number)

    await run(work())
    assert done == list(range(waits))


@WAYS
@pytest.mark.parametrize("waits", range(3))
async def test_its_error_is_raised(run: Run, waits: int) -> None:
    async def work() -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise OSError("the client is gone")

    with pytest.raises(OSError, match="the client is gone"):
        await run(work())


@WAYS
async def test_a_cancellation_reaches_it(run: Run) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    task = asyncio.ensure_future(run(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "cleaned up"]


@WAYS
async def test_it_may_catch_an_error_and_go_on(run: Run) -> None:
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen: list[str] = []

    async def work() -> None:
        try:
            await failing
        except OSError as exc:
            seen.append(str(exc))
        await asyncio.sleep(0)
        seen.append("went on")

    task = asyncio.ensure_future(run(work()))
    await asyncio.sleep(0)
    failing.set_exception(OSError("once"))
    await task
    assert seen == ["once", "went on"]


async def test_nothing_is_left_of_a_coroutine_that_does_not_wait() -> None:
    async def work() -> None:
        pass

    assert start_eagerly(work()) is None


async def test_what_it_waits_for_may_be_over_before_the_rest_is_awaited() -> None:
    waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await waited

    rest = start_eagerly(work())
    waited.set_result(None)
    assert rest is not None
    async with asyncio.timeout(30):
        await rest
