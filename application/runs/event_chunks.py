"""Events of a run, written down: a line with the checksum of what follows, then a line an event.

JSON has no line breaks outside of its strings, and within them they are escaped, so the lines are
the events. An event that was read back is encoded to the very bytes that were read.
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

CHECKSUM = 9
"""Bytes before the first event: eight digits and a line break."""

lines_of = msgspec.json.Encoder().encode_lines
"""Events -> their lines."""

_any_event: Any = reduce(or_, EVENT_TYPES.values())
_decode_lines = msgspec.json.Decoder(_any_event).decode_lines


def encode_chunk(events: Sequence[Event]) -> EventChunk:
    """Return events that follow each other, at least one, as a chunk."""
    return chunk(events[0].sequence_number, len(events), [lines_of(events)])


def chunk(first: int, count: int, lines: Iterable[bytes]) -> EventChunk:
    """Return the chunk of `count` events from number `first` on, of which these are the lines."""
    written = b"".join(lines)
    return EventChunk(first=first, count=count, body=b"%08x\n%b" % (crc32(written), written))


def decode_chunk(chunk: EventChunk) -> list[Event]:
    """Return what `encode_chunk` was given. Raises: CorruptLog."""
    lines = memoryview(chunk.body)[CHECKSUM:]
    if chunk.body[:CHECKSUM] != b"%08x\n" % crc32(lines):
        raise CorruptLog(f"Events from number {chunk.first} on are not as they were written.")
    try:
        events: list[Event] = _decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise CorruptLog(f"Events from number {chunk.first} on cannot be read: {exc}") from exc
    numbers = [event.sequence_number for event in events]
    if numbers != list(range(chunk.first, chunk.first + chunk.count)):
        raise CorruptLog(
            f"A chunk of {chunk.count} events from number {chunk.first} on has other numbers."
        )
    return events
