"""HTTP/1.1 with limits. uvicorn itself reads request heads of any size, waits for requests forever,
and accepts any number of connections.

A request refused here never reaches the app, but its error has the same shape.
"""

from __future__ import annotations

import asyncio
import re
import socket
from functools import partial
from typing import Any, ClassVar

import httptools
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antiphon.entrypoints.http.access.credentials import HEALTH, credential_of
from antiphon.entrypoints.http.errors import RETRY_AFTER_S, error_json
from antiphon.entrypoints.http.request_log import RefusalLog
from antiphon.entrypoints.http.wire.connections import Connections
from antiphon.entrypoints.http.wire.dispatch import Dispatcher
from antiphon.entrypoints.http.wire.frame_queue import FrameQueue
from antiphon.entrypoints.http.wire.incoming_bytes import IncomingBytes

MAX_HEAD_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 16 * 1024
"""What a client that reads too slowly may have waiting here, beside one batch of events: it is full
only when the kernel's buffer is."""

MAX_PIPELINED = 128
"""Requests that a client may send before the first is answered."""
HEAD_S = 10.0
"""Seconds to receive a request's head. No client needs longer, and until then it needs no key."""
WEBSOCKET_PATH = b"/v1/responses"
REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Transport(Struct, frozen=True, kw_only=True):
    """The state that the connections of one server share."""

    arrival_s: float
    connections: Connections
    incoming: IncomingBytes
    frames: FrameQueue
    dispatcher: Dispatcher
    refusals: RefusalLog


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection if a request's head is too long, or arrives too slowly."""

    shared: ClassVar[Transport]
    _head_bytes = 0
    _in_head = True
    _is_refused = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        # Each event is a small write, which waiting for a full segment would only delay.
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if self.shared.connections.add(transport):
            self._start_deadline()
        else:
            self._refuse(503, "The server has too many connections. Try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self.shared.connections.remove(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(_without_h2c(data) if self._in_head else data)
        except httptools.HttpParserError:  # uvicorn logs a warning for each
            self._refuse(400, "Invalid HTTP request received.")
            return
        except httptools.HttpParserUpgrade:
            # Any other request for an upgrade is handled as if it were none, as HTTP allows.
            if self._should_upgrade():
                self._cancel_deadline()
                self.handle_websocket_upgrade()
                return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"The request's head has more than {MAX_HEAD_BYTES} bytes.")

    def resume_writing(self) -> None:
        self.shared.connections.mark_progress(self.transport)
        super().resume_writing()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests are waiting on this connection")
        self._in_head, self._head_bytes = True, 0
        self._cancel_deadline()
        self._start_deadline()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.shared.connections.mark_working(self.transport)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._start_deadline()  # refused before it had arrived: uvicorn's timer is over

    def on_response_complete(self) -> None:
        is_idle = not self.pipeline
        super().on_response_complete()
        if is_idle:
            self.shared.connections.mark_waiting(self.transport)

    @classmethod
    def sharing(cls, shared: Transport) -> type[BoundedProtocol]:
        """Return a subclass with this transport, since uvicorn creates the instances."""
        return type(cls.__name__, (cls,), {"shared": shared})

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        # An orchestrator whose health check waits in a queue would kill a server that is only busy.
        if cycle.scope["path"] in HEALTH or self.shared.dispatcher.may_start():
            super()._start_asgi_task(cycle, app)
        else:
            credential = credential_of(cycle.scope["headers"])
            self.shared.dispatcher.add(credential, partial(self._start_queued, cycle, app))

    def _start_queued(self, cycle: Any, app: Any) -> None:
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, app)

    def _should_upgrade(self) -> bool:
        # Any other request for an upgrade is handled as if it were none, as HTTP allows.
        path = self.url.partition(b"?")[0].rstrip(b"/")
        is_websocket = path == WEBSOCKET_PATH and self.scope["method"] == "GET"
        return is_websocket and super()._should_upgrade()

    def _start_deadline(self) -> None:
        head_s = min(HEAD_S, self.shared.arrival_s)
        self._deadline = self.loop.call_later(head_s, self._end_head)

    def _end_head(self) -> None:
        """Refuse a request without a complete head; others have more time for their body."""
        remaining_s = self.shared.arrival_s - HEAD_S
        if self._in_head or remaining_s <= 0:
            self._refuse_late()
        else:
            self._deadline = self.loop.call_later(remaining_s, self._refuse_late)

    def _refuse_late(self) -> None:
        limit_s = min(HEAD_S, self.shared.arrival_s) if self._in_head else self.shared.arrival_s
        what = "request's head" if self._in_head else "request"
        self._refuse(408, f"The {what} did not arrive within {limit_s:g} seconds.")

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, message: str) -> None:
        self._cancel_deadline()
        self._is_refused = True
        self.shared.refusals.add(status, message)
        refuse(self.transport, status, message)


_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)


def _without_h2c(data: bytes) -> bytes:
    r"""Return the head without its offer of HTTP/2, which Java clients send by default.

    The parser would treat everything after the head as HTTP/2, and lose the request's body.

    >>> _without_h2c(b"POST / HTTP/1.1\r\nUpgrade: h2c\r\nhost: x\r\n\r\n{}")
    b'POST / HTTP/1.1\r\nhost: x\r\n\r\n{}'
    """
    if b"h2c" not in data:
        return data
    head, end, body = data.partition(b"\r\n\r\n")
    return _H2C.sub(b"", head + b"\r\n")[:-2] + end + body


def refuse(transport: asyncio.Transport, status: int, message: str) -> None:
    """Answer with an error, and close the connection."""
    if transport.is_closing():
        return
    body = error_json(status, message, None, None)
    retry = f"retry-after: {RETRY_AFTER_S}\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\ncache-control: no-store\r\n{retry}"
        "connection: close\r\n\r\n"
    )
    transport.write(head.encode() + body)
    transport.close()
