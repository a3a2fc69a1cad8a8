"""Keep-alive comments for silent streams, sent by one task per process, not a timer per stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.application.support.tasks import start_shared_task
from antiphon.entrypoints.http.wire.sse import KEEPALIVE


class StreamActivity:
    """Whether a stream has sent anything since the last check."""

    __slots__ = ("_lock", "_send", "silent")

    def __init__(self, send: Any) -> None:
        self._send = send
        self._lock = asyncio.Lock()
        """Held while nothing else may be sent: the rest of a frame follows."""
        self.silent = False

    def mark_active(self) -> None:
        self.silent = False

    async def send_in_portions(self, frames: bytes, portion_bytes: int) -> None:
        """Send frames bit by bit, and let others run in between."""
        async with self._lock:
            for start in range(0, len(frames), portion_bytes):
                await self._write(frames[start : start + portion_bytes])
                await asyncio.sleep(0)

    async def send_comment(self) -> None:
        if not self._lock.locked():  # otherwise the stream is not silent
            async with self._lock:
                await self._write(KEEPALIVE)

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


class KeepAlive:
    """Sends a comment to each stream that has been silent since the last check.

    It checks every half `interval_s`. If `interval_s` is 0, it sends none.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._activities: set[StreamActivity] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of open streams."""
        return len(self._activities)

    @contextmanager
    def watch(self, send: Any) -> Iterator[StreamActivity]:
        activity = StreamActivity(send)
        self._activities.add(activity)
        if self._interval_s and self._task is None:
            self._task = start_shared_task(self._check_streams())
        try:
            yield activity
        finally:
            self._activities.discard(activity)

    async def _check_streams(self) -> None:
        # It ends when no stream is left, so nothing has to stop it.
        while self._activities:
            await asyncio.sleep(self._interval_s / 2)
            silent = [activity for activity in self._activities if activity.silent]
            await asyncio.gather(*(self._send_comment(activity) for activity in silent))
            for activity in self._activities:
                activity.silent = True
        self._task = None

    async def _send_comment(self, activity: StreamActivity) -> None:
        # A client that does not read must not delay the comments for others.
        try:
            await asyncio.wait_for(activity.send_comment(), timeout=self._interval_s)
        except TimeoutError:
            self._activities.discard(activity)
