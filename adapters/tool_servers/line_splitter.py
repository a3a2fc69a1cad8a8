"""Splits the output of a process into lines, with a limit on the memory for each line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

END_BYTES = 200
"""The bytes of each end of a long line that are kept: enough to tell which request it answers."""

_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,')
_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,15})\s*\}\s*$')


class TruncatedLine(Struct, frozen=True):
    """The two ends of a line that was too long."""

    head: bytes
    tail: bytes

    @property
    def request_id(self) -> int | None:
        """The id of the request that the line answers, or None if the ends do not show it.

        >>> TruncatedLine(b'{"jsonrpc": "2.0", "id": 7, "result": {"id"', b"").request_id
        7
        >>> TruncatedLine(b"", b'"x"}]},"jsonrpc":"2.0","id":8}').request_id
        8
        >>> TruncatedLine(b'{"result": {"id": 7, ', b'{"id": 8}}').request_id
        """
        match = _FIRST.match(self.head) or _LAST.search(self.tail)
        return int(match[1]) if match else None


class LineSplitter:
    """Splits a stream of bytes into lines; a line above `max_bytes` becomes a TruncatedLine.

    >>> lines = LineSplitter(max_bytes=5)
    >>> [*lines.feed(b"ab"), *lines.feed(b"c\\nd"), *lines.feed(b"\\n")]
    [b'abc', b'd']
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._head: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | TruncatedLine]:
        """Yield the lines that end in this chunk."""
        *line_ends, rest = chunk.split(b"\n")
        for line_end in line_ends:
            self._append(line_end)
            yield self._take_line()
        self._append(rest)

    def _append(self, content: bytes) -> None:
        self._buffer += content
        if self._head is None and len(self._buffer) > self._max_bytes:
            self._head = bytes(self._buffer[:END_BYTES])
        if self._head is not None:
            del self._buffer[:-END_BYTES]

    def _take_line(self) -> bytes | TruncatedLine:
        line, head = bytes(self._buffer), self._head
        self._buffer.clear()
        self._head = None
        return line if head is None else TruncatedLine(head, line)
