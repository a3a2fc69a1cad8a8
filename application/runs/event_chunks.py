"""The encoding of a run's events in the store: a line with a checksum, then one line of JSON for
each event, and perhaps a line with the progress of the run.

The JSON has no line breaks outside of strings, and escapes those inside, so each line is one event.
The line with the progress begins with a `#`. A decoded event is encoded to the same bytes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

PORTION_BYTES = 256 * 1024
"""So much is decoded at a time, and the rest of the last line."""

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
    parts = [*lines, PROGRESS_MARK, progress] if progress else [*lines]
    checksum = reduce(lambda checksum, part: crc32(part, checksum), parts, 0)
    # One join, for which other threads may run if it is long.
    return EventChunk(first=first, count=count, body=b"".join([b"%08x\n" % checksum, *parts]))


def progress_of(chunk: EventChunk) -> bytes:
    """Return the records of the run's progress in a chunk; nothing if it has none."""
    start = chunk.body.rfind(b"\n" + PROGRESS_MARK)
    return b"" if start < 0 else chunk.body[start + 1 + len(PROGRESS_MARK) :]


def decode_chunk(chunk: EventChunk) -> list[Event]:
    """Return the events of a chunk. Raises: CorruptLog."""
    body = chunk.body
    if body[:CHECKSUM_BYTES] != b"%08x\n" % crc32(memoryview(body)[CHECKSUM_BYTES:]):
        raise CorruptLog(f"The events from number {chunk.first} have a wrong checksum.")
    progress = progress_of(chunk)
    end = len(body) - (len(PROGRESS_MARK) + len(progress) if progress else 0)
    try:
        events = [*_decode_in_portions(body, CHECKSUM_BYTES, end)]
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise CorruptLog(f"The events from number {chunk.first} cannot be decoded: {exc}") from exc
    numbers = [event.sequence_number for event in events]
    if numbers != list(range(chunk.first, chunk.first + chunk.count)):
        raise CorruptLog(
            f"A chunk of {chunk.count} events from number {chunk.first} has other numbers."
        )
    return events


def _decode_in_portions(body: bytes, start: int, end: int) -> Iterator[Event]:
    # The interpreter may switch threads between two portions, not while it decodes one.
    while start < end:
        line_break = body.find(b"\n", start + PORTION_BYTES, end)
        stop = end if line_break < 0 else line_break + 1
        yield from _decode_lines(memoryview(body)[start:stop])
        start = stop
