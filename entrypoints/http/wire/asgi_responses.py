"""Responses that watch the client: a stream of frames, or one JSON object at the end of a run.

Both read the same log, and both stop immediately if the client disconnects. They are ASGI apps,
the cheapest type that a Litestar handler can return: one send for each batch of events.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar

import msgspec
from litestar.types import Receive, Scope, Send

from antiphon.application.ports import WriteBatch
from antiphon.application.support.bytes_in_work import (
    FREE_BYTES,
    STREAM_WAIT_S,
    WAIT_S,
    BytesInWork,
    Subject,
)
from antiphon.application.support.listing import PAGE_BYTES
from antiphon.application.support.tasks import start_eagerly
from antiphon.domain import events as e
from antiphon.domain.access.rights import READING_METHODS
from antiphon.domain.errors import ServerShuttingDown
from antiphon.domain.events import Event
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.http.api.requests import REQUEST_ID_HEADER
from antiphon.entrypoints.http.errors import error_json
from antiphon.entrypoints.http.wire.sse import EventEncoder, KeepAlive, StreamActivity

T = TypeVar("T")
Headers = Mapping[str, str]
Leave = Callable[[], Awaitable[None]]
_encode = msgspec.json.Encoder().encode

PORTION_BYTES = 256 * 1024
"""Frames are sent in portions of this size. An event may repeat megabytes of log probabilities, and
whoever sends them copies them several times."""


BYTES_IN_WORK = "bytes_in_work"
"""In the app's state: the account of what the process works on."""


@asynccontextmanager
async def room_for(
    scope: Scope, size: int, *, subject: Subject = "frames_out", wait_s: float = WAIT_S
) -> AsyncIterator[None]:
    """Count so many bytes until the block ends, if they are many; first wait for room.

    Raises: ConcurrencyLimitExceeded, ServerOverloaded if there is none in time.
    """
    if size <= FREE_BYTES:
        yield
        return
    work: BytesInWork = scope["litestar_app"].state[BYTES_IN_WORK]
    with work.hold(scope["auth"].tenant, subject) as held:
        size = min(size, held.most)
        if wait_s:
            await held.wait_for(size, timeout_s=wait_s)
        else:
            held.resize(size)
        yield


class JsonResponse:
    """A JSON object with headers."""

    def __init__(self, content: Any, headers: Headers, *, status: int = 200) -> None:
        self._body = content if isinstance(content, bytes) else _encode(content)
        self._headers = headers
        self._status = status

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        # What only reads is refused at once, since it can be sent again.
        wait_s = 0 if scope["method"] in READING_METHODS else WAIT_S  # type: ignore[typeddict-item]
        async with room_for(scope, len(self._body), wait_s=wait_s):
            await send_json(send, self._body, self._headers, status=self._status)


class StoredItems:
    """Items of the store as JSON, which `read` returns. They count from before they are read."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], headers: Headers) -> None:
        self._read = read
        self._headers = headers

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        work: BytesInWork = scope["litestar_app"].state[BYTES_IN_WORK]
        with work.hold(scope["auth"].tenant, "histories") as held:
            await held.wait_for(2 * PAGE_BYTES)  # the items, and the JSON of the page
            body = await self._read()
            held.resize(min(len(body), held.most))
            await send_json(send, body, self._headers)


class StreamedFile:
    """A file's content. Each block is read after the client has received those before it.

    `headers` describe the content: its type, and its length if known.
    """

    def __init__(self, blocks: AsyncGenerator[bytes], headers: Headers) -> None:
        self._blocks = blocks
        self._headers = headers

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(receive, self._send(send))

    async def _send(self, send: Any) -> None:
        headers = _encode_headers(self._headers)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._blocks) as blocks:
            async for block in blocks:
                await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def final_response(
    response: Response,
    headers: Headers,
    encoder: EventEncoder,
    *,
    shape: Callable[[Response], Any] = lambda response: response,
) -> JsonResponse:
    """Return a finished response as JSON, or as an error if it failed
    (docs/reference/errors.md#failed-responses).

    `shape` converts the response to the object that the client receives.
    """
    if response.status == "failed" and response.error is not None:
        failure = response.error
        body = error_json(
            500, failure.message, None, failure.code, encoder.dialect, request_id=_id_in(headers)
        )
        # The response was accepted and stored: a client that retries would run it twice.
        return JsonResponse(body, {**headers, "x-should-retry": "false"}, status=500)
    return JsonResponse(encoder.encode_response(shape(response)), headers)


class Forwards(Protocol):
    """Hands on batches of events: those of one run (EventBatches), or of several."""

    async def forward(self, write: WriteBatch) -> None: ...


class EventStreamResponse:
    """The events of a run as frames, one send per batch, and the dialect's last frame."""

    def __init__(
        self,
        batches: Forwards,
        headers: Headers,
        *,
        leave: Leave,
        keepalive: KeepAlive,
        encoder: EventEncoder,
    ) -> None:
        self._batches = batches
        self._headers = headers
        self._leave = leave
        self._keepalive = keepalive
        self._encoder = encoder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not await run_while_connected(receive, self._stream(scope, send)):
                scope["state"]["client_left"] = True
        finally:
            await self._leave()

    async def _stream(self, scope: Scope, send: Any) -> bool:
        """Send all frames, and return True."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            **self._headers,
            "cache-control": "no-cache, no-store",  # the first is for proxies that buffer
            "x-accel-buffering": "no",
        }
        await send(
            {"type": "http.response.start", "status": 200, "headers": _encode_headers(headers)}
        )
        frames = self._encoder.frames

        sign = self._keepalive.sign_for(scope, self._encoder.dialect)
        with self._keepalive.watch(StreamActivity(send, sign=sign)) as activity:

            async def send_long(body: bytes) -> None:
                async with room_for(scope, len(body), wait_s=STREAM_WAIT_S):
                    await activity.send_in_portions(body, PORTION_BYTES)

            def write(events: Sequence[Event]) -> Awaitable[None] | None:
                activity.mark_active()
                body = frames(events)
                if len(body) > PORTION_BYTES:
                    return send_long(body)
                return start_eagerly(
                    send({"type": "http.response.body", "body": body, "more_body": True})
                )

            await self._batches.forward(write)
        last = self._encoder.last_frame()
        await send({"type": "http.response.body", "body": last, "more_body": False})
        return True


class FinalResponse:
    """The final response of a run as JSON; a failed run is an HTTP error.

    `shape` converts the response to the object that the client receives.
    """

    def __init__(
        self,
        batches: Forwards,
        headers: Headers,
        *,
        leave: Leave,
        encoder: EventEncoder,
        shape: Callable[[Response], Any] = lambda response: response,
    ) -> None:
        self._batches = batches
        self._headers = headers
        self._leave = leave
        self._encoder = encoder
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            last = await run_while_connected(receive, self._wait_for_last_event())
        finally:
            await self._leave()
        if isinstance(last, e.Completed | e.Incomplete | e.Failed):
            if last.response.error is not None:
                scope["state"]["error"] = last.response.error.code
            answer = final_response(last.response, self._headers, self._encoder, shape=self._shape)
            await answer(scope, receive, send)
        elif last is not None:
            scope["state"]["error"] = "interrupted"
            await self._send_interrupted(send, last)

    async def _send_interrupted(self, send: Send, last: Event) -> None:
        """Send the error for a run that continues elsewhere, or whose response was deleted."""
        dialect = self._encoder.dialect
        if isinstance(last, e.Error):
            body = error_json(
                500, last.message, None, last.code, dialect, request_id=_id_in(self._headers)
            )
            await send_json(send, body, {**self._headers, "x-should-retry": "false"}, status=500)
            return
        error = ServerShuttingDown()
        status = dialect.status(503)
        body = error_json(
            status, error.message, None, error.code, dialect, request_id=_id_in(self._headers)
        )
        headers = {**self._headers, "retry-after": "1", "connection": "close"}
        await send_json(send, body, headers, status=status)

    async def _wait_for_last_event(self) -> Event | None:
        last: Event | None = None

        def keep_last(events: Sequence[Event]) -> None:
            nonlocal last
            last = events[-1]

        await self._batches.forward(keep_last)
        return last


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or cancel it and return None if the client disconnects first."""
    task = asyncio.current_task()
    assert task is not None
    is_working = True

    def cancel_work(disconnected: asyncio.Task[None]) -> None:
        # A connection is also "disconnected" once its answer is complete.
        if is_working and not disconnected.cancelled():
            task.cancel()

    disconnected = asyncio.create_task(wait_for_disconnect(receive))
    disconnected.add_done_callback(cancel_work)
    try:
        return await work
    except asyncio.CancelledError:
        if not disconnected.done():
            raise  # cancelled by others: the server is stopping
        task.uncancel()
        return None
    finally:
        is_working = False
        disconnected.cancel()


async def send_json(
    send: Any, body: bytes, headers: Headers, *, status: int = 200, to: str = "http"
) -> None:
    """Send a whole response, also to a WebSocket handshake that is not accepted yet."""
    prefix = "websocket.http" if to == "websocket" else "http"
    all_headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
    }
    start = {
        "type": f"{prefix}.response.start",
        "status": status,
        "headers": _encode_headers(all_headers),
    }
    await send(start)
    kind, sent = f"{prefix}.response.body", 0
    while len(body) - sent > PORTION_BYTES:  # each waits until the client has those before it
        part = body[sent : sent + PORTION_BYTES]
        await send({"type": kind, "body": part, "more_body": True})
        sent += PORTION_BYTES
    await send({"type": kind, "body": body[sent:] if sent else body, "more_body": False})


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    # The first message of an unread body is `http.request`.
    while (await receive())["type"] != "http.disconnect":
        pass


def _id_in(headers: Headers) -> str | None:
    return headers.get(REQUEST_ID_HEADER)


def _encode_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
