"""Events of a stream are split in time that grows with their bytes alone."""

from __future__ import annotations

import pytest

from antiphon.adapters.upstreams.event_stream import EventSplitter
from antiphon.domain.errors import EngineError


def test_a_line_may_come_byte_by_byte() -> None:
    splitter = EventSplitter()
    stream = b": ping\r\n\r\ndata: one\r\n\r\ndata:two\nevent: x\nid: 3\ndata: three"
    events = [event for byte in stream for event in splitter.feed(bytes([byte]))]
    assert [*events, *splitter.end()] == [b"one", b"two", b"three"]
    assert splitter.end() == []


def test_a_line_without_an_end_fails_early() -> None:
    splitter = EventSplitter(max_bytes=100)
    splitter.feed(b"x" * 60)
    with pytest.raises(EngineError):
        splitter.feed(b"x" * 60)


def test_many_short_lines_are_no_long_one() -> None:
    splitter = EventSplitter(max_bytes=100)
    events = [event for _ in range(1000) for event in splitter.feed(b"data: " + b"x" * 60 + b"\n")]
    assert len(events) == 1000
