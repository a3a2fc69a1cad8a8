"""Split a stream of server-sent events into the data of its events."""

from __future__ import annotations

from antiphon.domain.errors import EngineError

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""The longest event; one token with twenty alternatives has some ten kilobytes."""

DONE = b"[DONE]"

DATA, ERROR = FIELDS = b"data:", b"error:"


class EventSplitter:
    """Collects bytes and returns the data of complete events.

    Lines end with `\\n`, `\\r\\n` or, between events, nothing at all: some servers send one `data:`
    line an event without the blank line between. So each `data:` line is an event: the model
    servers that are read here put their JSON on one line. An `error:` line, as llama.cpp wrote it
    for some time, is an event with this `error`. Comments and other lines are left out.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._max_bytes = max_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are complete. Raises: EngineError if one is too long.

        >>> splitter = EventSplitter()
        >>> splitter.feed(b'data: {"a":1}\\n\\nda')
        [b'{"a":1}']
        >>> splitter.feed(b'ta:{}\\r\\n: ping\\n')
        [b'{}']
        >>> splitter.feed(b'error: {"code":500}\\n')
        [b'{"error":{"code":500}}']
        """
        *lines, rest = data.split(b"\n")
        if lines and self._pieces:
            lines[0] = b"".join([*self._pieces, lines[0]])
            self._pieces.clear()
            self._size = 0
        self._keep(rest)
        return [_data_of(line) for line in lines if line.startswith(FIELDS)]

    def end(self) -> list[bytes]:
        """Return the data of a last line without a line end."""
        return self.feed(b"\n")

    def _keep(self, data: bytes) -> None:
        """Keep a part of a line. The parts are joined once: a line may come byte by byte."""
        if not data:
            return
        self._size += len(data)
        if self._size > self._max_bytes:
            raise EngineError("The model server sent an event that is too long.")
        self._pieces.append(data)


def _data_of(line: bytes) -> bytes:
    if line.startswith(DATA):
        return line[len(DATA) :].strip()
    return b'{"error":%b}' % line[len(ERROR) :].strip()
