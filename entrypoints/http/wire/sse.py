"""Server-sent events (docs/reference/events.md#framing), and signs of life in silent streams."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from antiphon.application.support.tasks import start_shared_task
from antiphon.domain.events import EVENT_TYPES, Event
from antiphon.domain.history.include_filter import IncludeFilter
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.http.wire.dialects import DIALECTS, OPENAI, Dialect

S = TypeVar("S", bound="SilentStream")

KEEPALIVE = b": keepalive\n"
"""Without an empty line after it, which some decoders read as an event without data."""
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


class EventEncoder(Protocol):
    """Writes the events of one response as the frames of a client, or its end as one object."""

    @property
    def dialect(self) -> Dialect: ...

    def frames(self, events: Sequence[Event]) -> bytes:
        """Return the frames of all events, joined, to be sent together."""

    def last_frame(self) -> bytes:
        """Return the frame after the last event, b"" if there is none."""

    def encode_response(self, value: Any) -> bytes:
        """Return a response, or the object that replaces it, as JSON."""


class ClientEncoder(EventEncoder):
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
        self._dialect = dialect
        self.encode: Callable[[Any], bytes] = (
            self._encode_padded if obfuscates else _ENCODERS[dialect.name]
        )
        self._view = view
        self._prefixes = _PREFIXES[dialect.name]

    @property
    def dialect(self) -> Dialect:
        return self._dialect

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
        visible = events if self._view is None else self._view.events(events)
        return b"".join([prefixes[type(event)] + encode(event) + b"\n\n" for event in visible])

    def last_frame(self) -> bytes:
        return self._dialect.done

    def visible(self, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events with the fields that the client sees."""
        return events if self._view is None else self._view.events(events)

    def encode_response(self, value: Any) -> bytes:
        """Return a response, or the object that replaces it, as JSON."""
        if self._view is not None and isinstance(value, Response):
            value = self._view.response(value)
        return self.encode(value)

    def _encode_padded(self, value: Any) -> bytes:
        body = self._dialect.encode(value)
        if type(value) not in _DELTAS:
            return body
        padding = secrets.token_hex(PADDED_TO // 2)[: -(len(body) + PADDING_KEY_BYTES) % PADDED_TO]
        return _encode({**self._dialect.fields_of(value), "obfuscation": padding})


class SilentStream(Protocol):
    """A stream that may be silent for a while; `silent` is false after something was sent."""

    silent: bool

    async def send_keepalive(self) -> None:
        """Send a sign of life."""


class StreamActivity(SilentStream):
    """Whether a stream of server-sent events has sent anything since the last check."""

    __slots__ = ("_lock", "_send", "_sign", "silent")

    def __init__(self, send: Any, *, sign: bytes = KEEPALIVE) -> None:
        self._send = send
        self._sign = sign
        self._lock = asyncio.Lock()
        """Held while nothing else may be sent: the rest of a frame follows."""
        self.silent = False

    def mark_active(self) -> None:
        self.silent = False

    async def send_in_portions(self, frames: bytes, portion_bytes: int) -> None:
        """Send frames bit by bit, and let others run in between."""
        async with self._lock:
            for start in range(0, len(frames), portion_bytes):
                await self._write(frames[start : start + portion_bytes])
                await asyncio.sleep(0)

    async def send_keepalive(self) -> None:
        if not self._lock.locked():  # otherwise the stream is not silent
            async with self._lock:
                await self._write(self._sign)

    async def _write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


KeepAliveStyle = Literal["auto", "comment", "event"]
"""A comment, which all clients skip, or an event, which a client may count as a sign of life. With
`auto`, those clients get an event that are known to need it."""

NEED_EVENTS = (b"codex",)
"""How the user agents of these clients begin. Codex ends a turn after five minutes without an
event; it counts neither comments nor pings."""


class KeepAlive:
    """Sends a sign of life to each stream that has been silent since the last check.

    One task does it for all streams of the process. It checks every half `interval_s`. If
    `interval_s` is 0, it sends none.
    """

    def __init__(self, interval_s: float, style: KeepAliveStyle = "auto") -> None:
        self._interval_s = interval_s
        self._style = style
        self._streams: set[SilentStream] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def sign_for(self, scope: Any, dialect: Dialect = OPENAI) -> bytes:
        """Return the sign of life for the client of this connection."""
        is_event = bool(dialect.keepalive_event) and self.is_event_for(scope, dialect)
        return dialect.keepalive_event if is_event else KEEPALIVE

    def is_event_for(self, scope: Any, dialect: Dialect = OPENAI) -> bool:
        """Return whether the client of this connection gets an event, not a comment."""
        if dialect.always_events and self._style == "auto":
            return True
        if self._style != "auto":
            return self._style == "event"
        for name, value in scope.get("headers", ()):
            if name == b"user-agent" and value.lower().startswith(NEED_EVENTS):
                return True
        return False

    @contextmanager
    def watch(self, stream: S) -> Iterator[S]:
        self._streams.add(stream)
        if self._interval_s and self._task is None:
            self._task = start_shared_task(self._check_streams())
        try:
            yield stream
        finally:
            self._streams.discard(stream)

    async def _check_streams(self) -> None:
        # It ends when no stream is left, so nothing has to stop it.
        while self._streams:
            await asyncio.sleep(self._interval_s / 2)
            silent = [stream for stream in self._streams if stream.silent]
            await asyncio.gather(*(self._send_keepalive(stream) for stream in silent))
            for stream in self._streams:
                stream.silent = True
        self._task = None

    async def _send_keepalive(self, stream: SilentStream) -> None:
        # A client that does not read must not delay the signs of life of others.
        try:
            await asyncio.wait_for(stream.send_keepalive(), timeout=self._interval_s)
        except TimeoutError:
            self._streams.discard(stream)
