"""Answers that watch the client: a stream of frames, or one JSON object when the response is over.

Both read the same log, and both stop at once when the client leaves. They are ASGI applications,
because that is the cheapest thing that Litestar lets a handler return: one send for each batch of
events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from litestar.types import Receive, Scope, Send

from antiphon.application.ports import EventBatches
from antiphon.domain import events as e
from antiphon.domain.errors import ServerShuttingDown
from antiphon.domain.events import Event
from antiphon.domain.response import Response
from antiphon.entrypoints.http.errors import error_json
from antiphon.entrypoints.http.keepalive import KeepAlive
from antiphon.entrypoints.http.sse import ClientEncoder

T = TypeVar("T")
Headers = Mapping[str, str]
Leave = Callable[[], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


class JsonResponse:
    """One JSON object."""

    def __init__(self, content: Any, headers: Headers, *, status: int = 200) -> None:
        self._body = content if isinstance(content, bytes) else _encode(content)
        self._headers = headers
        self._status = status

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, self._body, self._headers, status=self._status)


class StreamedFile:
    """Bytes as they are, each piece read when the client has taken those before it.

    `headers` say what they are, and how many.
    """

    def __init__(self, pieces: AsyncGenerator[bytes], headers: Headers) -> None:
        self._pieces = pieces
        self._headers = headers

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Any) -> None:
        headers = _raw(self._headers)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def final_response(
    response: Response,
    headers: Headers,
    encoder: ClientEncoder,
    *,
    shape: Callable[[Response], Any] = lambda response: response,
) -> JsonResponse:
    """Return the answer to who waited for a response; a failed one is an error
    (docs/reference/errors.md#failed-responses).

    `shape` makes what is shown of it.
    """
    if response.status == "failed" and response.error is not None:
        failure = response.error
        body = error_json(500, failure.message, None, failure.code, encoder.dialect)
        # The response was accepted and stored: a client that repeats it would run it twice.
        return JsonResponse(body, {**headers, "x-should-retry": "false"}, status=500)
    return JsonResponse(encoder.encode_response(shape(response)), headers)


class EventStreamResponse:
    """The events of a run as frames, each batch in one send; then what the dialect ends with."""

    def __init__(
        self,
        batches: EventBatches,
        headers: Headers,
        *,
        leave: Leave,
        keepalive: KeepAlive,
        encoder: ClientEncoder,
    ) -> None:
        self._batches = batches
        self._headers = headers
        self._leave = leave
        self._keepalive = keepalive
        self._encoder = encoder

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._stream(send))
        finally:
            await self._leave()

    async def _stream(self, send: Any) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **self._headers,
        }
        await send({"type": "http.response.start", "status": 200, "headers": _raw(headers)})
        frames = self._encoder.frames
        with self._keepalive.watch(send) as activity:
            async for events in self._batches:
                activity.mark_active()
                await send(
                    {"type": "http.response.body", "body": frames(events), "more_body": True}
                )
        last = self._encoder.dialect.done
        await send({"type": "http.response.body", "body": last, "more_body": False})


class FinalResponse:
    """The last state of a run as JSON; a failed run is an HTTP error.

    `shape` makes what is shown of the response.
    """

    def __init__(
        self,
        batches: EventBatches,
        headers: Headers,
        *,
        leave: Leave,
        encoder: ClientEncoder,
        shape: Callable[[Response], Any] = lambda response: response,
    ) -> None:
        self._batches = batches
        self._headers = headers
        self._leave = leave
        self._encoder = encoder
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            last = await unless_gone(receive, self._last())
        finally:
            await self._leave()
        if isinstance(last, e.Completed | e.Incomplete | e.Failed):
            answer = final_response(last.response, self._headers, self._encoder, shape=self._shape)
            await answer(scope, receive, send)
        elif last is not None:
            await self._broken_off(send, last)

    async def _broken_off(self, send: Send, last: Event) -> None:
        """Answer for a run that goes on elsewhere, or whose response was deleted."""
        dialect = self._encoder.dialect
        if isinstance(last, e.Error):
            body = error_json(500, last.message, None, last.code, dialect)
            await send_json(send, body, {**self._headers, "x-should-retry": "false"}, status=500)
            return
        stops = ServerShuttingDown()
        body = error_json(503, stops.message, None, stops.code, dialect)
        headers = {**self._headers, "retry-after": "1", "connection": "close"}
        await send_json(send, body, headers, status=503)

    async def _last(self) -> Event | None:
        last: Event | None = None
        async for events in self._batches:
            last = events[-1]
        return last


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what `work` returns, or None if the client left before; then `work` is cancelled."""
    task = asyncio.current_task()
    assert task is not None
    working = True

    def leave(gone: asyncio.Task[None]) -> None:
        # A connection is also "disconnected" once its answer is complete.
        if working and not gone.cancelled():
            task.cancel()

    gone = asyncio.create_task(_gone(receive))
    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.done():
            raise  # somebody else cancels us: the server stops
        task.uncancel()
        return None
    finally:
        working = False
        gone.cancel()


async def send_json(
    send: Any, body: bytes, headers: Headers, *, status: int = 200, to: str = "http"
) -> None:
    """Send a whole answer. A WebSocket that is not accepted yet is answered like any request."""
    prefix = "websocket.http" if to == "websocket" else "http"
    all_headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
    }
    start = {"type": f"{prefix}.response.start", "status": status, "headers": _raw(all_headers)}
    await send(start)
    await send({"type": f"{prefix}.response.body", "body": body, "more_body": False})


async def _gone(receive: Receive) -> None:
    # The first message of an unread body is `http.request`; only a disconnect ends this.
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
