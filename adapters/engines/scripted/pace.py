"""Timing of the scripted engine: runs wait here, and all of them wake up if the engine dies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from types import coroutine

from antiphon.domain.errors import EngineDead


@coroutine
def pause() -> Generator[None, None, None]:
    """Yield to the event loop once, like `asyncio.sleep(0)` but with one coroutine less."""
    yield


class Pace:
    """The pace of all runs. Their single tokens come together, as in a real engine's batches."""

    def __init__(self, tokens_per_s: float | None = None) -> None:
        self._beat_s = 1 / tokens_per_s if tokens_per_s else 0.0
        self.is_unlimited = not self._beat_s
        self._last_beat = -math.inf  # the loop's clock may start near 0
        self._awaiting_beat: list[asyncio.Future[None]] = []
        self._asleep: set[asyncio.Future[None]] = set()

    async def wait_for_tokens(self, count: int, tick_s: float = 0.0) -> None:
        """Wait for the time that `count` tokens take: `tick_s` each, or this pace."""
        if tick_s:
            await self.sleep(tick_s * count)
        elif not self._beat_s:
            await pause()
        elif count == 1:
            await self._beat()
        else:
            await self.sleep(self._beat_s * count)

    async def sleep(self, seconds: float) -> None:
        """Sleep. Raises: EngineDead as soon as the engine dies."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        timer = loop.call_later(seconds, _wake, waiting)
        self._asleep.add(waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._asleep.discard(waiting)

    def end(self, reason: str) -> None:
        """Raise EngineDead in all waiting runs."""
        for waiting in (*self._asleep, *self._awaiting_beat):
            if not waiting.done():
                waiting.set_exception(EngineDead(reason))
        self._awaiting_beat = []

    def _beat(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        if not self._awaiting_beat:
            # Relative to when the last beat was due, so that delays do not add up.
            due = max(self._last_beat + self._beat_s, loop.time())
            loop.call_at(due, self._on_beat, due)
        self._awaiting_beat.append(waiting)
        return waiting

    def _on_beat(self, due: float) -> None:
        self._last_beat = due
        woken, self._awaiting_beat = self._awaiting_beat, []
        for waiting in woken:
            _wake(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
