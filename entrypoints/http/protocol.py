"""HTTP/1.1 and WebSockets with limits. uvicorn itself reads request heads of any size, and waits
for requests forever.

A request refused here never reaches the app, but its error has the same shape.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from antiphon.entrypoints.http.errors import error_json

MAX_HEAD_BYTES = 64 * 1024
CLOSE_TIMEOUT_S = 1
"""Seconds for a client to read why its connection is closed."""
WEBSOCKET_PATH = b"/v1/responses"
REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection if a request's head is too long or takes over `arrival_s` to arrive."""

    arrival_s = 60.0
    _head_bytes = 0
    _in_head = True
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        # Each event is a small write, which waiting for a full segment would only delay.
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(_without_h2c(data) if self._in_head else data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"The request's head has more than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if self._deadline is None:
            self._start_deadline()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        super().on_message_complete()

    @classmethod
    def with_limit(cls, arrival_s: float) -> type[BoundedProtocol]:
        """Return a subclass with this limit, since uvicorn creates the instances."""
        return type(cls.__name__, (cls,), {"arrival_s": arrival_s})

    def _should_upgrade(self) -> bool:
        # Any other request for an upgrade is handled as if it were none, as HTTP allows.
        path = self.url.partition(b"?")[0].rstrip(b"/")
        is_websocket = path == WEBSOCKET_PATH and self.scope["method"] == "GET"
        return is_websocket and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: clients probe for upgrades, and they get a normal response."""

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _start_deadline(self) -> None:
        message = f"The request did not arrive within {self.arrival_s:g} seconds."
        self._deadline = self.loop.call_later(self.arrival_s, self._refuse, 408, message)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, message: str) -> None:
        self._cancel_deadline()
        _refuse(self.transport, status, message)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Explains refused handshakes, and leaves closing accepted connections to the app."""

    def shutdown(self) -> None:
        # The app knows about the shutdown: it lets runs end before it closes the connection.
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort_soon()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            message = f"This is not a valid WebSocket handshake: {self.conn.handshake_exc}."
            _refuse(self.transport, 400, message)

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self._abort_soon()

    def _abort_soon(self) -> None:
        # A closed transport still waits for its client to read all data.
        self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)


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


def _refuse(transport: asyncio.Transport, status: int, message: str) -> None:
    if transport.is_closing():
        return
    body = error_json(status, message, None, None)
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    transport.write(head.encode() + body)
    transport.close()
