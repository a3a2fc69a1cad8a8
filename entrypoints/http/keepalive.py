"""Keep-alive comments for silent streams: one wheel for the whole process, not a timer a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.entrypoints.http.sse import KEEPALIVE


class StreamActivity:
    """Whether one stream has sent anything since the wheel last came by."""

    __slots__ = ("send", "silent")

    def __init__(self, send: Any) -> None:
        self.send = send
        self.silent = False

    def mark_active(self) -> None:
        self.silent = False


class KeepAlive:
    """Every `interval_s`, each stream that sent nothing since the last time gets a comment.

    A stream is thus silent for at most twice the interval. `interval_s` 0 sends none.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._pulses: set[StreamActivity] = set()
        self._wheel: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, send: Any) -> Iterator[StreamActivity]:
        activity = StreamActivity(send)
        self._pulses.add(activity)
        if self._interval_s and self._wheel is None:
            self._wheel = asyncio.create_task(self._turn())
        try:
            yield activity
        finally:
            self._pulses.discard(activity)

    async def _turn(self) -> None:
        # Ends by itself when no stream is left, so that nobody has to stop it.
        while self._pulses:
            await asyncio.sleep(self._interval_s / 2)
            silent = [activity for activity in self._pulses if activity.silent]
            await asyncio.gather(*(self._beat(activity) for activity in silent))
            for activity in self._pulses:
                activity.silent = True
        self._wheel = None

    async def _beat(self, activity: StreamActivity) -> None:
        # A client that does not read must not hold up the comments of all others.
        frame = {"type": "http.response.body", "body": KEEPALIVE, "more_body": True}
        try:
            await asyncio.wait_for(activity.send(frame), timeout=self._interval_s)
        except TimeoutError:
            self._pulses.discard(activity)
