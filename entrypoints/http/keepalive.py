"""Keep-alive comments for silent streams: one wheel for the whole process, not a timer a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.entrypoints.http.sse import COMMENT


class Pulse:
    """Whether one stream has sent anything since the wheel last came by."""

    __slots__ = ("send", "silent")

    def __init__(self, send: Any) -> None:
        self.send = send
        self.silent = False

    def sent(self) -> None:
        self.silent = False


class KeepAlive:
    """Every `interval_s`, each stream that sent nothing since the last time gets a comment.

    A stream is thus silent for at most twice the interval. `interval_s` 0 sends none.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._pulses: set[Pulse] = set()
        self._wheel: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self, send: Any) -> Iterator[Pulse]:
        pulse = Pulse(send)
        self._pulses.add(pulse)
        if self._interval_s and self._wheel is None:
            self._wheel = asyncio.create_task(self._turn())
        try:
            yield pulse
        finally:
            self._pulses.discard(pulse)

    async def _turn(self) -> None:
        # Ends by itself when no stream is left, so that nobody has to stop it.
        while self._pulses:
            await asyncio.sleep(self._interval_s / 2)
            silent = [pulse for pulse in self._pulses if pulse.silent]
            await asyncio.gather(*(self._beat(pulse) for pulse in silent))
            for pulse in self._pulses:
                pulse.silent = True
        self._wheel = None

    async def _beat(self, pulse: Pulse) -> None:
        # A client that does not read must not hold up the comments of all others.
        frame = {"type": "http.response.body", "body": COMMENT, "more_body": True}
        try:
            await asyncio.wait_for(pulse.send(frame), timeout=self._interval_s)
        except TimeoutError:
            self._pulses.discard(pulse)
