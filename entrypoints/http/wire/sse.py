"""Server-sent events (docs/reference/events.md#framing)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.domain.events import EVENT_TYPES, Event
from antiphon.domain.history.include_filter import IncludeFilter
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.http.wire.dialects import DIALECTS, OPENAI, Dialect

KEEPALIVE = b": keepalive\n\n"
PADDED_TO = 64
"""Bytes. With obfuscation, the length of a delta's JSON is a multiple of this."""
PADDING_KEY_BYTES = len(',"obfuscation":""')

_PREFIXES: Mapping[str, Mapping[type[Event], bytes]] = {
    dialect.name: {
        kind: f"event: {dialect.event_name(name)}\ndata: ".encode()
        for name, kind in EVENT_TYPES.items()
    }
    for dialect in DIALECTS.values()
}
_ENCODERS = {dialect.name: dialect.encode for dialect in DIALECTS.values()}
_encode = msgspec.json.Encoder().encode
_DELTAS = frozenset(kind for name, kind in EVENT_TYPES.items() if name.endswith(".delta"))


class ClientEncoder:
    """The encoder for one client: its dialect, and the fields that it sees.

    If `view` is None, the client sees all fields. `obfuscates` hides the lengths of deltas
    (docs/reference/events.md#numbers-and-places).
    """

    def __init__(
        self,
        dialect: Dialect = OPENAI,
        *,
        view: IncludeFilter | None = None,
        obfuscates: bool = False,
    ) -> None:
        self.dialect = dialect
        self.encode: Callable[[Any], bytes] = (
            self._encode_padded if obfuscates else _ENCODERS[dialect.name]
        )
        self._view = view
        self._prefixes = _PREFIXES[dialect.name]

    @classmethod
    def of(cls, request: CreateResponse, dialect: Dialect) -> ClientEncoder:
        """Return the encoder for the client of a request."""
        # An unstored response cannot be retrieved later, so no field is hidden.
        view = None if request.store is False else IncludeFilter(request.include or ())
        options = request.stream_options
        return cls(dialect, view=view, obfuscates=bool(options and options.include_obfuscation))

    def frames(self, events: Sequence[Event]) -> bytes:
        """Return the frames of all events, joined, to be sent together.

        >>> from antiphon.domain.events import Error
        >>> ClientEncoder().frames([Error(sequence_number=3, code=None, message="no")])[:27]
        b'event: error\\ndata: {"type":'
        """
        prefixes, encode = self._prefixes, self.encode
        visible = self.visible(events)
        return b"".join([prefixes[type(event)] + encode(event) + b"\n\n" for event in visible])

    def visible(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events with the fields that the client sees."""
        return events if self._view is None else self._view.events(events)

    def encode_response(self, value: Any) -> bytes:
        """Return a response, or the object that replaces it, as JSON."""
        if self._view is not None and isinstance(value, Response):
            value = self._view.response(value)
        return self.encode(value)

    def _encode_padded(self, value: Any) -> bytes:
        body = self.dialect.encode(value)
        if type(value) not in _DELTAS:
            return body
        padding = secrets.token_hex(PADDED_TO // 2)[: -(len(body) + PADDING_KEY_BYTES) % PADDED_TO]
        return _encode({**self.dialect.fields_of(value), "obfuscation": padding})
