"""What comes out of a sandbox by a pipe: cut, decoded, and read slowly where it is a flood."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
FLOOD_PAUSE_S = 0.002
"""Between two readings of output that is thrown away: a flood must not keep the server busy."""


class OutputReader:
    """What a sandbox prints, up to `most` bytes a call; the rest is read and dropped, slowly.

    `news` is called when there is something to take.
    """

    def __init__(self, descriptor: int, most: int, news: Callable[[], None] | None = None) -> None:
        self._descriptor = descriptor
        self._most = most
        self._news = news
        self._decoder = _decoder()
        self._kept = bytearray()
        self._room = most
        self._dropped = 0
        self._later: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def piece(self) -> str:
        """Return what was printed since something was taken, whole characters."""
        text = self._decoder.decode(bytes(self._kept))
        self._kept.clear()
        return text

    def take(self) -> str:
        """Return the rest of what the call has printed; the next one begins anew."""
        for _ in range(self._most // READ_BYTES + 1):
            if not self._read():
                break
        text = self._decoder.decode(bytes(self._kept), final=True)
        if self._dropped:
            text += f"\n[{self._dropped} more bytes of output were dropped.]\n"
        self._kept.clear()
        self._decoder = _decoder()
        self._room, self._dropped = self._most, 0
        return text

    def close(self) -> None:
        self._pause()
        os.close(self._descriptor)

    def _read(self) -> int:
        try:
            piece = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        if not piece:
            self._pause()
            return 0
        kept = piece[: self._room]
        self._kept += kept
        self._room -= len(kept)
        self._dropped += len(piece) - len(kept)
        if self._dropped and self._later is None:
            self._loop.remove_reader(self._descriptor)
            self._later = self._loop.call_later(FLOOD_PAUSE_S, self._go_on)
        if kept and self._news is not None:
            self._news()
        return len(piece)

    def _go_on(self) -> None:
        self._later = None
        self._loop.add_reader(self._descriptor, self._read)

    def _pause(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._later is not None:
            self._later.cancel()
            self._later = None


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
