"""Computation in threads is shared fairly between tenants."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from typing import Any

from antiphon.application.support.tasks import work_for
from antiphon.application.support.threads import compute_in_thread, run_in_thread


def start(tenant: str, work: Any) -> asyncio.Task[Any]:
    async def compute() -> Any:
        work_for(tenant)
        return await compute_in_thread(work)

    return asyncio.get_running_loop().create_task(compute(), context=copy_context())


async def test_a_tenant_whose_computation_takes_long_leaves_a_thread_to_others() -> None:
    may_end = threading.Event()
    try:
        busy = [start("busy", lambda: may_end.wait(20)) for _ in range(5)]
        assert await asyncio.wait_for(start("other", lambda: "done"), 10) == "done"
        assert not any(task.done() for task in busy)
    finally:
        may_end.set()
    assert await asyncio.gather(*busy) == [True] * 5


async def test_a_cancelled_computation_holds_its_thread_until_it_ends() -> None:
    may_end, has_begun = threading.Event(), threading.Event()

    def work() -> bool:
        has_begun.set()
        return may_end.wait(20)

    try:
        cancelled = start("busy", work)
        await asyncio.to_thread(has_begun.wait, 10)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        waits = start("busy", lambda: "done")
        assert await start("other", lambda: "done") == "done"
        assert not waits.done()
    finally:
        may_end.set()
    assert await waits == "done"


async def test_an_error_is_raised_and_frees_the_thread() -> None:
    for _ in range(3):
        try:
            await start("busy", lambda: 1 / 0)
        except ZeroDivisionError:
            continue
        raise AssertionError("no error")
    assert await start("busy", lambda: "done") == "done"


async def test_short_work_needs_no_thread() -> None:
    here = threading.get_ident()
    assert await run_in_thread(10, threading.get_ident) == here
    assert await run_in_thread(10**9, threading.get_ident) != here


async def test_a_request_finishes_its_steps_before_much_younger_ones_begin() -> None:
    done: list[tuple[int, int]] = []

    async def take_steps(request: int) -> None:
        work_for("busy")
        for step in range(4):
            await compute_in_thread(done.append, (request, step))

    may_end = threading.Event()
    first = start("busy", lambda: may_end.wait(20))
    requests = [
        asyncio.get_running_loop().create_task(take_steps(number), context=copy_context())
        for number in range(6)
    ]
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(first, *requests)
    assert [request for request, step in done if step == 3] == [*range(6)]
    assert done.index((0, 3)) < done.index((5, 0))
