"""What a process writes, in lines, of which none takes more memory than it may."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

KEPT_BYTES = 200
"""Bytes of each end of a line that was too long: enough to see whose answer it was."""

_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,15})\s*,')
_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,15})\s*\}\s*$')


class TruncatedLine(Struct, frozen=True):
    """A line of which only both ends were kept."""

    head: bytes
    tail: bytes

    @property
    def request_id(self) -> int | None:
        """The number of the request that the line answers, where its ends say so for certain.

        >>> TruncatedLine(b'{"jsonrpc": "2.0", "id": 7, "result": {"id"', b"").request_id
        7
        >>> TruncatedLine(b"", b'"x"}]},"jsonrpc":"2.0","id":8}').request_id
        8
        >>> TruncatedLine(b'{"result": {"id": 7, ', b'{"id": 8}}').request_id
        """
        found = _FIRST.match(self.head) or _LAST.search(self.tail)
        return int(found[1]) if found else None


class LineSplitter:
    """Splits bytes as they come; of a line above `max_bytes` it gives a TruncatedLine.

    >>> lines = LineSplitter(max_bytes=5)
    >>> [*lines.feed(b"ab"), *lines.feed(b"c\\nd"), *lines.feed(b"\\n")]
    [b'abc', b'd']
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()
        self._head: bytes | None = None

    def feed(self, given: bytes) -> Iterator[bytes | TruncatedLine]:
        """Yield the lines that these bytes end."""
        *ended, rest = given.split(b"\n")
        for piece in ended:
            self._add(piece)
            yield self._take()
        self._add(rest)

    def _add(self, piece: bytes) -> None:
        self._begun += piece
        if self._head is None and len(self._begun) > self._max_bytes:
            self._head = bytes(self._begun[:KEPT_BYTES])
        if self._head is not None:
            del self._begun[:-KEPT_BYTES]

    def _take(self) -> bytes | TruncatedLine:
        line, head = bytes(self._begun), self._head
        self._begun.clear()
        self._head = None
        return line if head is None else TruncatedLine(head, line)
