"""The frames of all WebSockets, read in turns.

A frame of a few bytes costs as much time as a large one, and a client can send thousands at once.
So each connection reads one frame at a time, all connections take turns, and each iteration of the
event loop has time only for some of them. What is not read yet waits at the client: its connection
does not read on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from antiphon.application.support.tasks import call_soon_for_all

MAX_FRAMES = 16
"""Frames to read in one iteration of the event loop. Handling a message takes up to 0.3 ms."""
MAX_S = 0.002
"""Seconds to read frames in one iteration of the event loop."""

OPCODES = (0x0, 0x1, 0x2, 0x8, 0x9, 0xA)
MASK = 4
"""Bytes of the mask, which all frames of clients have."""


class FrameReader(Protocol):
    """A connection that reads its frames when it is its turn."""

    def read_frame(self) -> bool:
        """Read one frame, or the part of it that has arrived. Return whether there is more."""


class FrameQueue:
    """The connections that have frames to read, in turns."""

    def __init__(self) -> None:
        self._waiting: deque[FrameReader] = deque()
        self._is_scheduled = False

    def add(self, reader: FrameReader) -> None:
        """Give a reader its turns until it has read everything. It must not be waiting already."""
        self._waiting.append(reader)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            call_soon_for_all(self._take_turns)

    def _take_turns(self) -> None:
        self._is_scheduled = False
        try:
            self._read_some()
        finally:
            if self._waiting:
                self._schedule()

    def _read_some(self) -> None:
        end = time.monotonic() + MAX_S
        for _ in range(MAX_FRAMES):
            if not self._waiting or time.monotonic() >= end:
                return
            reader = self._waiting.popleft()
            if reader.read_frame():
                self._waiting.append(reader)


class FrameBudget:
    """How many frames a client may send that start nothing: `burst`, and some more each second."""

    def __init__(
        self,
        *,
        burst: int = 60,
        per_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._left = float(burst)
        self._counted_at = clock()

    def spend(self) -> bool:
        """Count one frame. Return whether the client may still send it.

        >>> budget = FrameBudget(burst=1, per_s=0)
        >>> budget.spend(), budget.spend()
        (True, False)
        """
        now = self._clock()
        refilled = self._left + (now - self._counted_at) * self._per_s
        self._left = min(self._burst, refilled) - 1
        self._counted_at = now
        return self._left >= 0


def frame_length(start: bytes | bytearray | memoryview) -> int | None:
    """Return the bytes of the frame that starts here (RFC 6455, 5.2); None if its head is cut.

    A head that the parser refuses immediately counts as a whole frame.

    >>> frame_length(bytes([0x89, 0x80])), frame_length(bytes([0x81, 0xFE, 1, 0]))
    (6, 264)
    """
    if len(start) < 2:
        return None
    if start[0] & 0x70 or start[0] & 0x0F not in OPCODES or not start[1] & 0x80:
        return 2
    length = start[1] & 0x7F
    if length < 126:
        return 2 + MASK + length
    head = 4 if length == 126 else 10
    if len(start) < head:
        return None
    return head + MASK + int.from_bytes(start[2:head], "big")
