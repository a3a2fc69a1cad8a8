"""`GET /v1/responses` with an upgrade: many responses on one connection
(docs/reference/api.md#websocket-mode).

Each `response.create` is the request that HTTP would take, goes to the same service, and its lane
reads the same log. What HTTP would answer as an error is an `error` frame here; nothing but the
client, the time limit and the end of the server closes the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency
from litestar.exceptions import WebSocketDisconnect
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.responses.start import AcceptedResponse
from antiphon.application.support.threads import run_in_thread
from antiphon.application.websocket.continuations import Continuations
from antiphon.application.websocket.lanes import Lane, Lanes, lane_of
from antiphon.application.websocket.steering import Steering
from antiphon.domain import errors as er
from antiphon.domain import events as e
from antiphon.domain.decoding import read
from antiphon.domain.request import CreateResponse
from antiphon.entrypoints.http.asgi_responses import send_json
from antiphon.entrypoints.http.bodies import BodyLimits, check_complexity, decode_body, redact_body
from antiphon.entrypoints.http.dialects import dialect_or_default
from antiphon.entrypoints.http.errors import error_json
from antiphon.entrypoints.http.requests import (
    header,
    request_id,
    response_headers,
    tenant_of,
    trace_headers,
)
from antiphon.entrypoints.http.responses import Services
from antiphon.entrypoints.http.sse import ClientEncoder
from antiphon.entrypoints.http.websocket_frames import error_frame, event_frame, text_of

logger = logging.getLogger("antiphon.websocket")

Socket = WebSocket[Any, Any, Any]

ENVELOPE = frozenset({"type", "stream_id"})
"""Fields of a `response.create` that no HTTP request has."""

MEMORY_IN_BODIES = 4
"""A connection remembers as many bytes of unstored responses as so many of the longest bodies."""

TIME_IS_UP, RESTARTS = 1000, 1012
"""Close codes; clients that can connect again do so after the second."""

MESSAGES = ("response.create", "response.steer")


class ClientGone(Exception):
    """Nothing more can be sent."""


class MessageHead(Struct, frozen=True):
    """What tells messages apart; checked by hand, so that each error can have its own code."""

    type: Any = None
    stream_id: Any = None


_decode_head = msgspec.json.Decoder(MessageHead).decode


@websocket("/v1/responses")
async def handle_websocket(socket: Socket, services: NamedDependency[Services]) -> None:
    """Answer the client's messages until one side has enough."""
    if _is_of_another_site(socket):
        await _refuse_handshake(socket)
    else:
        await Conversing(socket, services)()


class Conversing:
    """One connection, from its first message to its close. Call it once."""

    def __init__(self, socket: Socket, services: Services) -> None:
        self._socket = socket
        self._services = services
        self._options = services.options
        self._tenant = tenant_of(socket)
        self._traced = trace_headers(socket)
        self._dialect = dialect_or_default(self._options.dialect, socket)
        self._lanes: Lanes[CreateResponse] = Lanes(self._options.lanes)
        self._continuations = Continuations(
            max_bytes=MEMORY_IN_BODIES * self._options.limits.max_bytes
        )
        self._steering = Steering()
        self._answering: set[asyncio.Task[None]] = set()
        self._ending: er.RequestError | None = None
        self._has_left = False

    async def __call__(self) -> None:
        await self._socket.accept(headers=response_headers(self._socket))
        reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._close())
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._lanes.clear()
            await _cancelled(reading, closing, *self._answering)

    # --- what comes in ----------------------------------------------------------------------------

    async def _read(self) -> None:
        """Take messages until the client has left."""
        while True:
            message: Any = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await self._take(message)

    async def _take(self, message: Mapping[str, Any]) -> None:
        lane: Lane = None
        try:
            body = _received(message)
            head = await run_in_thread(len(body), _head, body, self._options.limits)
            lane = lane_of(head.stream_id)
            await self._act(head.type, lane, body)
        except ClientGone:
            raise
        except Exception as exc:
            await self._refuse(exc, lane)

    async def _act(self, kind: Any, lane: Lane, body: bytes) -> None:
        match kind:
            case "response.create":
                await self._create(lane, body)
            case "response.steer":
                await self._send(text_of(self._steering.answer(body)))
            case _:
                raise _unknown(kind)

    async def _create(self, lane: Lane, body: bytes) -> None:
        strict = self._options.strict_unknown_fields
        decoded = await run_in_thread(
            len(body), decode_body, body, strict=strict, envelope=ENVELOPE
        )
        request = decoded.request
        if self._options.log_requests:
            logger.info("request on %s: %s", request_id(self._socket), redact_body(body))
        if request.background:
            raise er.RequestError(
                "Unsupported parameter: 'background' cannot be used on a WebSocket connection.",
                param="background",
                code="unsupported_parameter",
            )
        if self._ending is not None:
            raise self._ending
        self._lanes.add(lane, replace(request, stream=True), size=len(body))
        self._start()

    # --- what goes out ----------------------------------------------------------------------------

    def _start(self) -> None:
        """Answer what may be answered now, while there is somebody to hear it."""
        while not self._has_left and (next_one := self._lanes.take()) is not None:
            task = asyncio.create_task(self._answer(*next_one))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, lane: Lane, request: CreateResponse) -> None:
        try:
            await self._respond(lane, request)
        except ClientGone:
            return
        except Exception as exc:
            self._continuations.evict(lane, request.previous_response_id)
            await self._refuse(exc, lane)
        finally:
            self._lanes.leave(lane)
            self._start()

    async def _respond(self, lane: Lane, request: CreateResponse) -> None:
        created = await self._services.create(
            request,
            tenant=self._tenant,
            trace_headers=self._traced,
            remembered=self._continuations.remembered,
            strict=self._options.strict,
        )
        self._steering.track(created.id, lane)
        encoder = ClientEncoder.of(request, self._dialect)
        try:
            async for events in created.events:
                if isinstance(events[-1], e.Completed | e.Incomplete | e.Failed):
                    self._over(lane, request, created, events[-1])  # first: the client may go on
                for event in encoder.visible(events):
                    await self._send(event_frame(event, lane, encoder))
        finally:
            self._steering.untrack(created.id)
            await created.leave()

    def _over(
        self,
        lane: Lane,
        request: CreateResponse,
        created: AcceptedResponse,
        end: e.Completed | e.Incomplete | e.Failed,
    ) -> None:
        self._steering.untrack(created.id)
        if isinstance(end, e.Failed):
            self._continuations.evict(lane, request.previous_response_id)
        elif created.stored:
            self._continuations.forget(lane)
        else:
            self._continuations.keep(lane, created.id, created.conversation())

    async def _refuse(self, exc: Exception, lane: Lane) -> None:
        if self._options.error_stacks or not isinstance(exc, er.AntiphonError):
            logger.error("a message on %s was refused", request_id(self._socket), exc_info=exc)
        elif isinstance(exc, er.StoreError):
            logger.error("a message on %s was refused: %s", request_id(self._socket), exc)
        await self._send(error_frame(exc, lane, self._dialect))

    async def _send(self, text: str) -> None:
        # Waits while the client does not read: what it was not sent yet stays in the log.
        try:
            await self._socket.send({"type": "websocket.send", "text": text, "bytes": None})
        except (OSError, RuntimeError, WebSocketDisconnect):  # left, or told to leave
            self._has_left = True
            raise ClientGone from None

    # --- the end ----------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Close when the time is up or the server stops: what runs ends first, what waits never
        begins.
        """
        try:
            async with asyncio.timeout(self._options.websocket_s):
                await self._services.stopping.wait()
            self._ending, code = _stops(), RESTARTS
        except TimeoutError:
            self._ending, code = _time_is_up(self._options.websocket_s), TIME_IS_UP
        for lane in self._lanes.clear():
            await self._refuse(self._ending, lane)
        while self._answering:
            await asyncio.wait(self._answering)
        if code == TIME_IS_UP:  # a client that asks for nothing more would not know why
            await self._refuse(self._ending, None)
        await self._socket.close(code, self._ending.message)


def _received(message: Mapping[str, Any]) -> bytes:
    text: str | None = message.get("text")
    if text is None:
        raise er.RequestError(
            "Send text frames, with one JSON object each; this one was binary.",
            code="invalid_value",
        )
    return text.encode()


def _head(body: bytes, limits: BodyLimits) -> MessageHead:
    check_complexity(body, limits)
    head: MessageHead = read(_decode_head, body, "", what="The message")
    return head


def _unknown(kind: Any) -> er.RequestError:
    if kind is None:
        return er.missing_parameter("type")
    return er.RequestError(
        f"Invalid value: {str(kind)[:100]!r}. Supported values are: {', '.join(MESSAGES)}.",
        param="type",
        code="invalid_value",
    )


def _stops() -> er.RequestError:
    return er.TooManyRequests("The server is stopping. Connect again.", code="server_error")


def _time_is_up(limit_s: float) -> er.RequestError:
    return er.RequestError(
        f"Responses websocket connection limit reached ({limit_s / 60:g} minutes). Create a new "
        "websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )


def _is_of_another_site(socket: Socket) -> bool:
    """Say whether a web page of another host asks.

    Browsers keep pages from reading other hosts' HTTP answers, but not their WebSockets.
    """
    origin = header(socket, b"origin")
    return bool(origin) and origin.partition("://")[2] != header(socket, b"host")


async def _refuse_handshake(socket: Socket) -> None:
    message = "Web pages of another host than this server's may not connect ('Origin')."
    body = error_json(403, message, None, None)
    await send_json(socket.send, body, response_headers(socket), status=403, to="websocket")


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancel the tasks and wait for their ends; what a task failed of is logged."""
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(end, Exception) and not isinstance(end, ClientGone):
            logger.error("a connection failed", exc_info=end)
