"""HTTP/1.1 with limits. uvicorn itself reads request heads of any size, waits for requests forever,
and accepts any number of connections.

A request refused here never reaches the app, but its error has the same shape.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sized
from functools import partial
from typing import Any, ClassVar
from urllib.parse import unquote

import httptools
from litestar.utils.path import normalize_path
from msgspec import Struct
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.entrypoints.http.access.credentials import HEALTH, credential_of
from antiphon.entrypoints.http.errors import RETRY_AFTER_S, error_json
from antiphon.entrypoints.http.request_log import RefusalLog
from antiphon.entrypoints.http.wire.connections import Connections
from antiphon.entrypoints.http.wire.dispatch import Dispatcher
from antiphon.entrypoints.http.wire.frame_queue import FrameQueue

MAX_HEAD_BYTES = 64 * 1024
WRITE_BUFFER_BYTES = 16 * 1024
"""What a client that reads too slowly may have waiting here, beside one batch of events: it is full
only when the kernel's buffer is."""

MAX_PIPELINED = 128
"""Requests that a client may send before the first is answered."""
HEAD_S = 10.0
"""Seconds to receive a request's head. No client needs longer, and until then it needs no key."""
WEBSOCKET_PATH = "/v1/responses"
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
    bytes_in_work: BytesInWork
    frames: FrameQueue
    dispatcher: Dispatcher
    refusals: RefusalLog


class _InOrder(FlowControl):
    """Reads nothing while requests wait in the pipeline. uvicorn reads on when any of them asks for
    its body, and so holds up to the largest number of requests with all their bodies."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection if a request's head is too long, or arrives too slowly."""

    shared: ClassVar[Transport]
    _head_bytes = 0
    _in_head = True
    _is_refused = False
    _deadline: asyncio.TimerHandle | None = None
    _running: Any = None
    """The request that is being answered; those of `pipeline` follow."""

    def connection_made(self, transport: Any) -> None:
        # Each event is a small write, which waiting for a full segment would only delay.
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self.flow = _InOrder(transport, self.pipeline)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if self.shared.connections.add(transport):
            self._start_deadline()
        else:
            self._refuse(503, "The server has too many connections. Try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self.shared.connections.remove(self.transport)
        self.pipeline.clear()  # not when cyclic garbage is collected: it has the requests' bodies
        if self._is_answering():  # uvicorn tells the last request only
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:  # uvicorn logs a warning for each
            self._refuse(400, "Invalid HTTP request received.")
            return
        except httptools.HttpParserUpgrade:
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
        if self.parser.should_upgrade() and self._declines_upgrade():
            return
        self._in_head = False
        self.shared.connections.mark_working(self.transport)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade() and self._declines_upgrade():
            return
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

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(cycle, app)
        # An orchestrator whose health check waits in a queue would kill a server that is only busy.
        if cycle.scope["path"] in HEALTH or self.shared.dispatcher.may_start():
            super()._start_asgi_task(cycle, app)
        else:
            credential = credential_of(cycle.scope["headers"])
            self.shared.dispatcher.add(credential, partial(self._start_queued, cycle, app))

    def _start_queued(self, cycle: Any, app: Any) -> None:
        if not cycle.disconnected:
            super()._start_asgi_task(cycle, app)

    def _parse(self, data: bytes) -> None:
        """Raises: HttpParserError, HttpParserUpgrade."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._declines_upgrade():
                    raise
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                # After `Connection: close`, the old one reads nothing more. As uvicorn makes them:
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _should_upgrade(self) -> bool:
        if not super()._should_upgrade() or self.parser.get_method() != b"GET":
            return False
        path = unquote(self.url.partition(b"?")[0].decode("latin-1"))
        return normalize_path(path) == WEBSOCKET_PATH  # as authentication does

    def _declines_upgrade(self) -> bool:
        """Whether a request's head is read again without its offer to change the protocol.

        Such a request is handled as if it offered nothing (RFC 9110, section 7.8). The parser would
        take what follows the head for the other protocol, and lose the request's body.
        """
        offers = any(name == b"upgrade" for name, _ in self.headers)
        return offers and not self._should_upgrade()

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % each for each in self.headers if each[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _start_deadline(self) -> None:
        head_s = min(HEAD_S, self.shared.arrival_s)
        self._deadline = self.loop.call_later(head_s, self._end_head)

    def _end_head(self) -> None:
        """Refuse a request without a complete head; others have more time for their body."""
        if self._is_answering() and (self._in_head or self.cycle is not self._running):
            self._start_deadline()  # its turn has not come, and it may be unread
            return
        remaining_s = self.shared.arrival_s - HEAD_S
        if self._in_head or remaining_s <= 0:
            self._refuse_late()
        else:
            self._deadline = self.loop.call_later(remaining_s, self._refuse_late)

    def _refuse_late(self) -> None:
        if not self._in_head and self.cycle is not None and self.cycle.response_started:
            self.transport.close()  # refused before it had arrived: it has its answer
            return
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


def _without_chunks(cycle: Any, app: Any) -> Any:
    """Return the app for a client of HTTP/1.0, such as a proxy: it knows no chunks, so an answer
    without a length ends with the connection (RFC 9112, section 6.1)."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        has_length = False

        def send_unframed(message: Any) -> Any:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(
                    name.lower() == b"content-length" for name, _ in message["headers"]
                )
                cycle.chunked_encoding = None if has_length else False
            elif not has_length:
                cycle.expected_content_length = len(message["body"])
            return send(message)

        await app(scope, receive, send_unframed)

    return answer


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
