"""The encoding of a run's events in the store: a line with a checksum, then one line of JSON for
each event, and perhaps a line with the progress of the run.

The JSON has no line breaks outside of strings, and escapes those inside, so each line is one event.
The line with the progress begins with a `#`. A decoded event is encoded to the same bytes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any
from zlib import crc32

import msgspec

from antiphon.application.ports import EventChunk
from antiphon.domain.errors import CorruptLog
from antiphon.domain.events import EVENT_TYPES, Event

CHECKSUM_BYTES = 9
"""The length of the checksum line: eight digits and a line break."""

PROGRESS_MARK = b"#"
"""Begins the line with the progress; no event's JSON does."""

lines_of = msgspec.json.Encoder().encode_lines
"""Events -> their lines, as bytes."""

_any_event: Any = reduce(or_, EVENT_TYPES.values())
_decode_lines = msgspec.json.Decoder(_any_event).decode_lines


def encode_chunk(events: Sequence[Event]) -> EventChunk:
    """Return consecutive events, at least one, as a chunk."""
    return make_chunk(events[0].sequence_number, len(events), [lines_of(events)])


def make_chunk(first: int, count: int, lines: Iterable[bytes], progress: bytes = b"") -> EventChunk:
    """Return the chunk of `count` events, numbered from `first`, with these encoded lines.

    `progress` are the records of the run's progress since the chunk before.
    """
    body = b"".join([*lines, PROGRESS_MARK, progress] if progress else lines)
    return EventChunk(first=first, count=count, body=b"%08x\n%b" % (crc32(body), body))


def progress_of(chunk: EventChunk) -> bytes:
    """Return the records of the run's progress in a chunk; nothing if it has none."""
    start = chunk.body.rfind(b"\n" + PROGRESS_MARK)
    return b"" if start < 0 else chunk.body[start + 1 + len(PROGRESS_MARK) :]


def decode_chunk(chunk: EventChunk) -> list[Event]:
    """Return the events of a chunk. Raises: CorruptLog."""
    lines = memoryview(chunk.body)[CHECKSUM_BYTES:]
    if chunk.body[:CHECKSUM_BYTES] != b"%08x\n" % crc32(lines):
        raise CorruptLog(f"The events from number {chunk.first} have a wrong checksum.")
    if progress := progress_of(chunk):
        lines = lines[: -len(progress) - len(PROGRESS_MARK)]
    try:
        events: list[Event] = _decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise CorruptLog(f"The events from number {chunk.first} cannot be decoded: {exc}") from exc
    numbers = [event.sequence_number for event in events]
    if numbers != list(range(chunk.first, chunk.first + chunk.count)):
        raise CorruptLog(
            f"A chunk of {chunk.count} events from number {chunk.first} has other numbers."
        )
    return events
