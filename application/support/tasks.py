"""Tasks: whose work they do, and work that is for all callers, does not end with its caller, or
starts without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


_TENANT: ContextVar[str] = ContextVar("tenant", default="")


def work_for(tenant: str) -> None:
    """Let what the current task does from now on be this tenant's."""
    _TENANT.set(tenant)


def current_tenant() -> str:
    """Return whose work the current task does; "" if it is nobody's."""
    return _TENANT.get()


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


async def all_of(works: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results, in order; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


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


def start_eagerly(coroutine: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run a coroutine up to its first wait. Return its rest, or None if it has ended.

    As eager tasks of later versions of Python do. Sending a frame nearly always ends at once: only
    a client that reads too slowly makes it wait. So the reader of a log can send from a callback,
    and needs its task only for the rest.

    `if (rest := start_eagerly(work())) is not None: await rest` has the effect of `await work()`.
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration:
        return None
    return _Rest(coroutine, waits_for)


class _Rest:
    """A coroutine that has been started and waits, to be awaited."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        # What `yield from` does, but from the second step on.
        coroutine, waits_for = self._coroutine, self._waits_for
        try:
            while True:
                try:
                    value = yield waits_for
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as exc:
                    waits_for = coroutine.throw(exc)
                else:
                    waits_for = coroutine.send(value)
        except StopIteration:
            return
