"""Start a coroutine without a task, as eager tasks of later versions of Python do.

Sending a frame nearly always ends at once: only a client that reads too slowly makes it wait. So
the reader of a log can send from a callback, and needs its task only for the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any


def start_eagerly(coroutine: Coroutine[Any, Any, None]) -> Awaitable[None] | None:
    """Run a coroutine up to its first wait. Return its rest, or None if it has ended.

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
