"""The ids of a response's trace (W3C Trace Context). They are derived, not stored.

So what is handed on while a response runs names spans that are exported only when it has ended, and
a run keeps its ids when another server goes on with it.
"""

from __future__ import annotations

import re
from hashlib import sha256

from msgspec import Struct

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class SpanContext(Struct, frozen=True):
    """A span of somebody's trace; ids are in hexadecimal."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def parse_traceparent(header: str) -> SpanContext | None:
    """Return the span that a `traceparent` header names, or None if it is malformed.

    >>> parse_traceparent("00-" + "a" * 32 + "-" + "b" * 16 + "-01").is_sampled
    True
    """
    found = _TRACEPARENT.fullmatch(header)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_SPAN:
        return None
    return SpanContext(found[1], found[2], bool(int(found[3], 16) & 1))


class TraceIds(Struct, frozen=True):
    """The trace of one response: the client's, or one of its own that may link to the client's."""

    trace_id: str
    first_span: int
    is_sampled: bool
    parent: SpanContext | None = None
    link: SpanContext | None = None

    @classmethod
    def of(
        cls, response_id: str, traceparent: str, *, is_linked: bool, sample_ratio: float = 1.0
    ) -> TraceIds:
        """Return the ids. `is_linked`: the response outlives the client's request, or shares it.

        A response without a client's trace is sampled by `sample_ratio`.
        """
        client = parse_traceparent(traceparent) if traceparent else None
        digest = sha256(response_id.encode()).hexdigest()
        own_id, first_span = digest[:32], int(digest[32:48], 16)
        if client is None:
            is_sampled = int(own_id[:13], 16) < sample_ratio * 16**13
            return cls(own_id, first_span, is_sampled)
        if is_linked:
            return cls(own_id, first_span, client.is_sampled, link=client)
        return cls(client.trace_id, first_span, client.is_sampled, parent=client)

    def span(self, turn: int = 0, call: int = 0) -> SpanContext:
        """Return the span of the response, of a turn of it, or of a call in that turn, from 1 on.

        No two of them are equal: turns and calls are far fewer than 2**32.
        """
        return SpanContext(
            self.trace_id, f"{self.first_span ^ (turn << 32 | call):016x}", self.is_sampled
        )
