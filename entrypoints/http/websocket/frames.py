"""Events and errors as text frames of a WebSocket (docs/reference/api.md#websocket-mode)."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.application.websocket.lanes import Lane
from antiphon.domain import events as e
from antiphon.domain.errors import LimitExceeded
from antiphon.entrypoints.http.errors import (
    RETRY_AFTER_S,
    ErrorBody,
    error_body,
    error_fields,
    error_headers,
)
from antiphon.entrypoints.http.wire.dialects import Dialect
from antiphon.entrypoints.http.wire.sse import ClientEncoder

_encode = msgspec.json.Encoder().encode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


class ErrorFrame(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="error", tag_field="type"
):
    """An error: with a `status` for a refused message, or a `sequence_number` for a failed run."""

    status: int | None = None
    stream_id: str | None = None
    sequence_number: int | None = None
    error: ErrorBody


def event_frame(event: e.Event, lane: Lane, encoder: ClientEncoder) -> str:
    """Return the frame of an event, with the lane's `stream_id`.

    >>> event = e.WebSearchSearching(item_id="ws_1", output_index=0)
    >>> event_frame(event, "a", ClientEncoder())[-16:]
    '"stream_id":"a"}'
    """
    if isinstance(event, e.Error):
        error = error_body(500, event.message, event.param, event.code, encoder.dialect)
        frame = ErrorFrame(stream_id=lane, sequence_number=event.sequence_number, error=error)
        return text_of(frame)
    encoded = encoder.encode(event)
    if lane is not None:
        encoded = _encode({**_decode_fields(encoded), "stream_id": lane})
    return encoded.decode()


class KeepAliveFrame(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="keepalive", tag_field="type"
):
    """A sign of life of a lane."""

    stream_id: str | None = None


def keepalive_frame(lane: Lane) -> str:
    """Return the frame that says that a lane's response is alive.

    >>> keepalive_frame(None)
    '{"type":"keepalive"}'
    """
    return text_of(KeepAliveFrame(stream_id=lane))


def error_frame(exc: Exception, lane: Lane, dialect: Dialect) -> str:
    """Return the frame of an error, with the status that it has over HTTP."""
    status, message, param, code = error_fields(exc)
    error = error_body(status, message, param, code, dialect)
    # Over HTTP, the code is optional; a frame must have one.
    error = replace(error, code=code or error.type)
    headers = error_headers(exc) if isinstance(exc, LimitExceeded) else {}
    if status == 503:
        headers = {"retry-after": str(RETRY_AFTER_S)}
    if headers:
        error = replace(error, headers=dict(headers))
    return text_of(ErrorFrame(status=status, stream_id=lane, error=error))


def text_of(message: Struct) -> str:
    return _encode(message).decode()
