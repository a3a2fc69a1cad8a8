"""Events as server-sent frames (api_surface 5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from antiphon.domain.events import EVENT_TYPES, Event

COMMENT = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"

_PREFIXES: Mapping[type[Event], bytes] = {
    kind: f"event: {name}\ndata: ".encode() for name, kind in EVENT_TYPES.items()
}
_encode = msgspec.json.Encoder().encode


def frames(events: Sequence[Event]) -> bytes:
    """Return the frames of all events, joined: one send for whatever is ready.

    >>> from antiphon.domain.events import Error
    >>> frames([Error(sequence_number=3, code=None, message="no")])[:27]
    b'event: error\\ndata: {"type":'
    """
    return b"".join([_PREFIXES[type(event)] + _encode(event) + b"\n\n" for event in events])
