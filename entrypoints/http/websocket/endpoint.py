"""WebSocket mode: many responses on one connection (docs/reference/api.md#websocket-mode).

Each `response.create` is the same request as over HTTP, goes to the same service, and its lane
reads the same log. HTTP errors become `error` frames. Only the client, the time limit, and a
server shutdown close the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.di import NamedDependency
from litestar.exceptions import WebSocketDisconnect
from msgspec import Struct
from msgspec.structs import replace
from websockets.frames import CloseCode

from antiphon.adapters.ids import new_id
from antiphon.application.input.submission import Submission
from antiphon.application.responses.start import AcceptedResponse
from antiphon.application.support.threads import run_in_thread
from antiphon.application.websocket.continuations import Continuations
from antiphon.application.websocket.injecting import InjectFailed, Injecting
from antiphon.application.websocket.lanes import Lane, Lanes, lane_of
from antiphon.application.websocket.steering import (
    AfterEnd,
    Asked,
    SteerEvent,
    SteerFailed,
    Steering,
)
from antiphon.domain import errors as er
from antiphon.domain import events as e
from antiphon.domain.requests.decoding import DecodedRequest, read
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.steering import decode_steer
from antiphon.entrypoints.http.api.requests import (
    caller_of,
    headers_of,
    knows_agents,
    request_context,
    request_id,
    response_headers,
)
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.errors import (
    RETRY_AFTER_S,
    RETRY_LATER,
    error_fields,
    error_json,
    forget_frames,
)
from antiphon.entrypoints.http.request_log import log_message
from antiphon.entrypoints.http.websocket.frames import (
    error_frame,
    event_frame,
    keepalive_frame,
    text_of,
)
from antiphon.entrypoints.http.wire.asgi_responses import send_json
from antiphon.entrypoints.http.wire.bodies import (
    BodyLimits,
    check_complexity,
    decode_body,
    decode_in_thread,
    redact_body,
)
from antiphon.entrypoints.http.wire.dialects import dialect_or_default
from antiphon.entrypoints.http.wire.frame_queue import FrameBudget
from antiphon.entrypoints.http.wire.session_names import SESSION_HEADER, unheeded_session
from antiphon.entrypoints.http.wire.sse import ClientEncoder, SilentStream

logger = logging.getLogger("antiphon.websocket")

Socket = WebSocket[Any, Any, Any]

ENVELOPE = frozenset({"type", "stream_id"})
"""Fields of a `response.create` that HTTP requests do not have."""

MEMORY_IN_BODIES = 4
"""A connection remembers unstored responses of up to this many times the maximum body size."""

CLOSE_TIME_LIMIT, CLOSE_SHUTDOWN = CloseCode.NORMAL_CLOSURE, CloseCode.SERVICE_RESTART
"""Clients may reconnect after the second."""

REFUSAL_PAUSE_S = 0.05
"""Seconds to read nothing after a message that came too early."""

MESSAGES = ("response.create", "response.steer", "response.inject")


DISCONNECTED = (OSError, RuntimeError, WebSocketDisconnect)
"""What is raised when something is sent to a client that has disconnected or was disconnected."""


class ClientDisconnected(Exception):
    """The client disconnected, so nothing more can be sent."""


class MessageHead(Struct, frozen=True):
    """The fields that identify a message. They are validated by hand, for specific error codes."""

    type: Any = None
    stream_id: Any = None


_decode_head = msgspec.json.Decoder(MessageHead).decode


@websocket("/v1/responses")
async def handle_websocket(socket: Socket, services: NamedDependency[Services]) -> None:
    """Handle a connection until one side closes it."""
    try:
        with services.websockets.opened(caller_of(socket).tenant):
            await WebSocketSession(socket, services).run()
    except er.ConcurrencyLimitExceeded as exc:
        await _refuse_handshake(socket, 429, exc.message, exc.code)


class LaneActivity(SilentStream):
    """Whether a lane has sent anything since the last check, for clients that count no pings."""

    def __init__(self, send: Callable[[str], Awaitable[None]], lane: Lane) -> None:
        self._send = send
        self._lane = lane
        self.silent = False

    async def send_keepalive(self) -> None:
        with suppress(ClientDisconnected):
            await self._send(keepalive_frame(self._lane))


class WebSocketSession:
    """One connection, from its first message to its close."""

    def __init__(self, socket: Socket, services: Services) -> None:
        self._socket = socket
        self._services = services
        self._options = services.options
        self._dialect = dialect_or_default(self._options.dialect, socket)
        work, tenant = self._options.limits.bytes_in_work, caller_of(socket).tenant
        self._queued = work.hold(tenant, "requests")
        self._remembered = work.hold(tenant, "histories")
        self._lanes: Lanes[DecodedRequest[CreateResponse]] = Lanes(
            self._options.lanes, self._queued
        )
        self._continuations = Continuations(
            self._remembered, work, max_bytes=MEMORY_IN_BODIES * self._options.limits.max_bytes
        )
        self._steers_held = work.hold(tenant, "requests")
        self._steering = Steering(
            self._steers_held, max_bytes=self._options.limits.max_bytes, new_id=new_id
        )
        self._injecting = Injecting(max_bytes=self._options.limits.max_bytes)
        self._refusals = FrameBudget()
        self._answering: set[asyncio.Task[None]] = set()
        self._closing_error: er.RequestError | None = None
        self._is_disconnected = False

    async def run(self) -> None:
        is_named = SESSION_HEADER.encode() in headers_of(self._socket.scope)
        ignored = (SESSION_HEADER,) if is_named else ()
        await self._socket.accept(headers=response_headers(self._socket, ignored))
        reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._close())
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._lanes.clear()
            await _cancel(reading, closing, *self._answering)
            self._queued.release()
            self._remembered.release()
            self._steers_held.release()

    # --- incoming messages ------------------------------------------------------------------------

    async def _read(self) -> None:
        """Handle messages until the client disconnects."""
        while True:
            message: Any = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await self._handle(message)

    async def _handle(self, message: dict[str, Any]) -> None:
        lane: Lane = None
        try:
            body = _body_of(message)
            head = await run_in_thread(len(body), _read_head, body, self._options.limits)
            lane = lane_of(head.stream_id)
            await self._dispatch(head.type, lane, body)
        except ClientDisconnected:
            raise
        except Exception as exc:
            await self._refuse(exc, lane)
            forget_frames(exc)
            await self._slow_down(exc)

    async def _dispatch(self, kind: Any, lane: Lane, body: bytes) -> None:
        match kind:
            case "response.create":
                await self._create(lane, body)
            case "response.steer":
                await self._steer(body)
            case "response.inject":
                await self._inject(body)
            case _:
                raise _unknown_type(kind)

    async def _create(self, lane: Lane, body: bytes) -> None:
        self._services.admission.runs.check_room(caller_of(self._socket).tenant)
        strict = self._options.strict_unknown_fields
        decoded = await decode_in_thread(body, decode_body, strict=strict, envelope=ENVELOPE)
        request = decoded.request
        if self._options.log_requests:
            logger.info("request on %s: %s", request_id(self._socket), redact_body(body))
        if request.background:
            raise er.RequestError(
                "Unsupported parameter: 'background' cannot be used on a WebSocket connection.",
                param="background",
                code="unsupported_parameter",
            )
        if self._closing_error is not None:
            raise self._closing_error
        streamed = replace(decoded, request=replace(request, stream=True))
        self._lanes.add(lane, streamed, size=len(body))
        self._start_requests()

    async def _steer(self, body: bytes) -> None:
        steer = await run_in_thread(len(body), decode_steer, body)
        if self._options.log_requests:
            logger.info("steer on %s: %s", request_id(self._socket), redact_body(body))
        closing = None if self._closing_error is None else self._closing_error.message
        answer = self._steering.receive(steer, closing=closing)
        # Nothing may wait before this: the successor of the response must not come first.
        await self._send(text_of(answer))
        if isinstance(answer, SteerFailed):
            await self._spend_refusal()

    async def _inject(self, body: bytes) -> None:
        if self._options.log_requests:
            logger.info("inject on %s: %s", request_id(self._socket), redact_body(body))
        answer = self._injecting.receive(body)
        await self._send(text_of(answer))
        if isinstance(answer, InjectFailed):
            await self._spend_refusal()

    # --- outgoing frames --------------------------------------------------------------------------

    def _start_requests(self) -> None:
        """Start all requests that are next in their lanes, while the client is connected."""
        while not self._is_disconnected and (next_request := self._lanes.take()) is not None:
            task = asyncio.create_task(self._answer(*next_request))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, lane: Lane, decoded: DecodedRequest[CreateResponse]) -> None:
        """Answer a request, and then what follows by itself because the response was steered."""
        keepalive, activity = self._services.keepalive, LaneActivity(self._send, lane)
        needs_events = keepalive.is_event_for(self._socket.scope)
        next_one: Asked | None
        next_one, returned = self._steering.begin(lane, decoded.request, decoded.ignored)
        try:
            await self._send_all(returned)
            with keepalive.watch(activity) if needs_events else nullcontext():
                while next_one is not None:
                    next_one = await self._answer_one(lane, next_one, activity)
        except ClientDisconnected:
            return
        finally:
            self._lanes.leave(lane)
            self._start_requests()

    async def _answer_one(self, lane: Lane, asked: Asked, activity: LaneActivity) -> Asked | None:
        """Answer a request and return the one that follows by itself, if any."""
        created: AcceptedResponse | None = None
        response_id = new_id("resp")
        try:
            created = await self._services.create(self._submission_of(lane, asked, response_id))
            self._steering.commit(lane)
            return await self._stream(lane, created, activity)
        except ClientDisconnected:
            raise
        except Exception as exc:
            self._injecting.end(response_id)
            if created is None and asked.follows:
                # The client has asked for nothing, and can send its steers in a request of its own.
                self._log_refusal(exc)
            else:
                self._continuations.evict(lane, asked.request.previous_response_id)
                await self._refuse(exc, lane)
            await self._send_all(self._steering.fail(lane, error_fields(exc)[1]))
            forget_frames(exc)
            await self._slow_down(exc)
        return None

    def _submission_of(self, lane: Lane, asked: Asked, response_id: str) -> Submission:
        """Raises: RequestError if nothing may follow any more."""
        if asked.follows and self._closing_error is not None:
            raise self._closing_error
        body = msgspec.json.encode(asked.request) if asked.request.has_agents else None
        return Submission(
            caller=caller_of(self._socket),
            request=asked.request,
            response_id=response_id,
            body=body,
            context=request_context(self._socket, shares_connection=True),
            remembered=self._continuations.remembered,
            strict=self._options.strict,
            ignored=(*asked.ignored, *unheeded_session(asked.request)),
            steers=self._steering.open(lane, response_id),
            is_expanded=asked.follows,
            may_have_agents=knows_agents(self._socket),
            injections=self._injecting.open(lane, response_id)
            if asked.request.has_agents
            else None,
        )

    async def _stream(
        self, lane: Lane, created: AcceptedResponse, activity: LaneActivity
    ) -> Asked | None:
        started_at, status = time.perf_counter(), "client left"
        encoder = ClientEncoder.of(created.request, self._dialect)
        after = AfterEnd()
        try:
            async for events in created.events:
                if isinstance(events[-1], e.Completed | e.Incomplete | e.Failed):
                    # Before sending: the client may continue from this response immediately.
                    after = self._finish(lane, created, events[-1])
                    status = events[-1].response.status
                    self._injecting.end(created.id)
                self._injecting.note(created.id, events)
                for event in encoder.visible(events):
                    await self._send(event_frame(event, lane, encoder))
                activity.silent = False
            await self._send_all(after.events)
        finally:
            log_message(
                status=status,
                seconds=time.perf_counter() - started_at,
                key=caller_of(self._socket).key_name,
                response_id=created.id,
            )
            self._injecting.end(created.id)
            await created.leave()
        return after.successor

    def _finish(
        self, lane: Lane, created: AcceptedResponse, end: e.Completed | e.Incomplete | e.Failed
    ) -> AfterEnd:
        if isinstance(end, e.Failed):
            self._continuations.evict(lane, created.request.previous_response_id)
        elif created.stored:
            self._continuations.forget(lane)
        else:
            self._continuations.keep(lane, created.id, created.conversation())
        return self._steering.end(lane, created.request, end.response)

    async def _refuse(self, exc: Exception, lane: Lane) -> None:
        self._log_refusal(exc)
        await self._send(error_frame(exc, lane, self._dialect))

    def _log_refusal(self, exc: Exception) -> None:
        if self._options.error_stacks or not isinstance(exc, er.AntiphonError):
            logger.error("a message on %s was refused", request_id(self._socket), exc_info=exc)
        elif isinstance(exc, er.StoreError):
            logger.error("a message on %s was refused: %s", request_id(self._socket), exc)

    async def _slow_down(self, exc: Exception) -> None:
        """Keep a client from sending messages that are refused as fast as it can."""
        if error_fields(exc)[0] in RETRY_LATER:
            await asyncio.sleep(REFUSAL_PAUSE_S)  # it reads no more messages meanwhile
        else:
            await self._spend_refusal()

    async def _spend_refusal(self) -> None:
        if not self._refusals.spend():
            with suppress(*DISCONNECTED):
                await self._socket.close(CloseCode.POLICY_VIOLATION, "Too many refused messages.")

    async def _send_all(self, events: Sequence[SteerEvent]) -> None:
        for event in events:
            await self._send(text_of(event))

    async def _send(self, text: str) -> None:
        # This waits while the client does not read. Unsent events stay in the log.
        try:
            await self._socket.send({"type": "websocket.send", "text": text, "bytes": None})
        except DISCONNECTED:
            self._is_disconnected = True
            raise ClientDisconnected from None

    # --- closing ----------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Close at the time limit or at shutdown: running requests finish, others are refused."""
        try:
            async with asyncio.timeout(self._options.websocket_s):
                await self._services.stopping.wait()
            self._closing_error, code = _shutdown_error(), CLOSE_SHUTDOWN
        except TimeoutError:
            self._closing_error = _time_limit_error(self._options.websocket_s)
            code = CLOSE_TIME_LIMIT
        for lane in self._lanes.clear():
            await self._refuse(self._closing_error, lane)
        while self._answering:
            await asyncio.wait(self._answering)
        with suppress(ClientDisconnected):
            await self._send_all(self._steering.close(self._closing_error.message))
        if code == CLOSE_TIME_LIMIT:  # a client without open requests would not know the reason
            await self._refuse(self._closing_error, None)
        with suppress(*DISCONNECTED):
            await self._socket.close(code, self._closing_error.message)


def _body_of(message: dict[str, Any]) -> bytes:
    text: str | None = message.pop("text", None)  # megabytes, which need not be there twice
    if text is None:
        raise er.RequestError(
            "Send text frames, with one JSON object each; this one was binary.",
            code="invalid_value",
        )
    return text.encode()


def _read_head(body: bytes, limits: BodyLimits) -> MessageHead:
    check_complexity(body, limits)
    head: MessageHead = read(_decode_head, body, "", what="The message")
    return head


def _unknown_type(kind: Any) -> er.RequestError:
    if kind is None:
        return er.missing_parameter("type")
    return er.RequestError(
        f"Invalid value: {str(kind)[:100]!r}. Supported values are: {', '.join(MESSAGES)}.",
        param="type",
        code="invalid_value",
    )


def _shutdown_error() -> er.RequestError:
    return er.ServerOverloaded("The server is stopping. Connect again.", code="server_error")


def _time_limit_error(limit_s: float) -> er.RequestError:
    return er.RequestError(
        f"Responses websocket connection limit reached ({limit_s / 60:g} minutes). Create a new "
        "websocket connection to continue.",
        code="websocket_connection_limit_reached",
    )


async def _refuse_handshake(
    socket: Socket, status: int, message: str, code: str | None = None
) -> None:
    headers = response_headers(socket)
    if status in RETRY_LATER:
        headers["retry-after"] = str(RETRY_AFTER_S)
    body = error_json(status, message, None, code)
    await send_json(socket.send, body, headers, status=status, to="websocket")


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancel the tasks, wait for them, and log their errors."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, ClientDisconnected):
            logger.error("a WebSocket connection failed", exc_info=result)
