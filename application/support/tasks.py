"""Work that is for all callers, or does not end with its caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def start_shared_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start work for all callers: it is of no request and no tenant, whoever started it."""
    return asyncio.create_task(work, context=Context())


def call_soon_for_all(callback: Callable[[], object]) -> None:
    """Call it in the next iteration of the event loop: in no request's context, and no tenant's
    turn, whoever asks for it."""
    asyncio.get_running_loop().call_soon(callback, context=Context())


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, however often the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


async def run_or_undo(
    work: Coroutine[Any, Any, T],
    undo: Callable[[T], Awaitable[None]],
    *,
    fails_with: type[Exception],
) -> T:
    """Run `work` to its end. If the caller is cancelled meanwhile, undo its result, if it has one.

    For work that may not stop halfway, such as starting a process.
    """
    working = asyncio.ensure_future(work)

    async def undo_when_done() -> None:
        with suppress(fails_with):
            await undo(await working)

    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await run_to_completion(undo_when_done())
        raise
