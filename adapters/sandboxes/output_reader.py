"""A reader of a sandbox's output: it truncates, decodes, and reads a flood of output slowly."""

from __future__ import annotations

import asyncio
import codecs
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
FLOOD_PAUSE_S = 0.002
"""The pause between two reads of output that is dropped, so that a flood does not keep the server
busy."""


class OutputReader:
    """Reads what a sandbox prints, up to `max_bytes` per call; it drops the rest, slowly.

    It calls `on_output` when there is new output to take.
    """

    def __init__(
        self, descriptor: int, max_bytes: int, on_output: Callable[[], None] | None = None
    ) -> None:
        self._descriptor = descriptor
        self._max_bytes = max_bytes
        self._on_output = on_output
        self._decoder = _new_decoder()
        self._buffer = bytearray()
        self._remaining_bytes = max_bytes
        self._dropped_bytes = 0
        self._resuming: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def take_chunk(self) -> str:
        """Return the output since the last take, up to the last complete character."""
        text = self._decoder.decode(bytes(self._buffer))
        self._buffer.clear()
        return text

    def take_rest(self) -> str:
        """Return the rest of the call's output, and start over for the next call."""
        for _ in range(self._max_bytes // READ_BYTES + 1):
            if not self._read():
                break
        text = self._decoder.decode(bytes(self._buffer), final=True)
        if self._dropped_bytes:
            text += f"\n[{self._dropped_bytes} more bytes of output were dropped.]\n"
        self._buffer.clear()
        self._decoder = _new_decoder()
        self._remaining_bytes, self._dropped_bytes = self._max_bytes, 0
        return text

    def close(self) -> None:
        self._stop_reading()
        os.close(self._descriptor)

    def _read(self) -> int:
        """Read once, and return the number of bytes."""
        try:
            content = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        if not content:
            self._stop_reading()
            return 0
        chunk = content[: self._remaining_bytes]
        self._buffer += chunk
        self._remaining_bytes -= len(chunk)
        self._dropped_bytes += len(content) - len(chunk)
        if self._dropped_bytes and self._resuming is None:
            self._loop.remove_reader(self._descriptor)
            self._resuming = self._loop.call_later(FLOOD_PAUSE_S, self._resume)
        if chunk and self._on_output is not None:
            self._on_output()
        return len(content)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._descriptor, self._read)

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None


def _new_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
