"""What goes wrong with a model server: errors instead of an answer, and broken streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from msgspec import Struct
from tests.upstreams.chat_styles import Style

Json = dict[str, Any]

LONG_LINE_BYTES = 100 * 1024 * 1024
PIECE = b"x" * 65536


class Closed(Exception):
    """The server closes the connection, whatever it has sent."""


class ErrorAnswer(Struct, frozen=True, kw_only=True):
    """An answer with an error status. `message` may name the `{tokens}` and the `{limit}`."""

    status: int
    message: str
    code: str | None = None
    type: str = "server_error"
    param: str | None = None
    headers: Mapping[str, str] = {}


SECRET = "sk-upstream-3f1c"
"""The key of a server, which it repeats in errors; nobody may see it."""

ERRORS: Mapping[str, ErrorAnswer] = {
    "500": ErrorAnswer(status=500, message=f"CUDA error on worker {SECRET}"),
    "503": ErrorAnswer(status=503, message="Loading model", type="unavailable_error"),
    "429": ErrorAnswer(
        status=429,
        message=f"Rate limit reached for {SECRET}",
        code="rate_limit_exceeded",
        type="requests",
        headers={"retry-after": "7"},
    ),
    "401": ErrorAnswer(
        status=401, message=f"Incorrect API key provided: {SECRET}", code="invalid_api_key"
    ),
    "403": ErrorAnswer(status=403, message=f"Key {SECRET} may not use this model."),
    "404": ErrorAnswer(
        status=404, message=f"The model {SECRET} does not exist", code="model_not_found"
    ),
    "filtered prompt": ErrorAnswer(
        status=400,
        message="The response was filtered due to the prompt triggering a content policy.",
        code="content_filter",
        type="invalid_request_error",
        param="prompt",
    ),
    "redirect": ErrorAnswer(
        status=307, message="elsewhere", headers={"location": "http://127.0.0.1:1/v1"}
    ),
}
"""Errors that come instead of an answer."""


def context_error(style: Style, *, tokens: int, limit: int) -> ErrorAnswer:
    """Return how a server says that a prompt is too long."""
    message = style.context_message.format(tokens=tokens, limit=limit, over=tokens - limit)
    return ErrorAnswer(
        status=style.refused_status if style.error_body == "text" else 400,
        message=message,
        code=style.context_code,
        type=style.context_type,
        param="messages" if style.context_code else None,
    )


def error_body(style: Style, error: ErrorAnswer) -> Json:
    """Return the body of an error, in the shape of a server."""
    match style.error_body:
        case "flat" | "mistral":
            return {
                "object": "error",
                "message": error.message,
                "type": error.type,
                "param": error.param,
                "code": error.status if style.error_body == "flat" else error.code,
            }
        case "text":
            return {"error": error.message, "error_type": error.type}
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code if error.code is not None else error.status,
        }
    }


def refused_field(style: Style, path: list[Any], value: Any) -> tuple[int, Json]:
    """Return the status and the body with which a server refuses a field that it does not know."""
    if style.error_body == "mistral":
        detail = {
            "type": "extra_forbidden",
            "loc": ["body", *path],
            "msg": "Extra inputs are not permitted",
            "input": value,
        }
        body: Json = {
            "object": "error",
            "message": {"detail": [detail]},
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
        return style.refused_status, body
    name = ".".join(map(str, path))
    error = ErrorAnswer(
        status=style.refused_status,
        message=f"Unrecognized request argument supplied: {name}",
        type="invalid_request_error",
        param=name,
    )
    return style.refused_status, error_body(style, error)


# --- streams --------------------------------------------------------------------------------------

Events = AsyncIterator[bytes]
HEALTHY_EVENTS = 6
"""How much of an answer comes before a stream breaks."""

PAUSE_S = 0.1
"""A connection that is reset loses what its reader has not read yet, so it has some time."""


async def _healthy(events: Events) -> AsyncGenerator[bytes]:
    for _ in range(HEALTHY_EVENTS):
        yield await anext(events)


async def _hang(events: Events) -> AsyncGenerator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _hang_later(events: Events) -> AsyncGenerator[bytes]:
    async for event in _healthy(events):
        yield event
    await asyncio.Event().wait()


async def _ping_forever(events: Events) -> AsyncGenerator[bytes]:
    async for event in _healthy(events):
        yield event
    while True:
        yield b": ping\n\n"
        await asyncio.sleep(0.05)


async def _drip(events: Events) -> AsyncGenerator[bytes]:
    """Send a byte a second."""
    async for event in events:
        for byte in event:
            yield bytes([byte])
            await asyncio.sleep(1)


def _with_event(broken: bytes) -> Callable[[Events], AsyncGenerator[bytes]]:
    """Return the fault of a stream that has this event in its middle."""

    async def play(events: Events) -> AsyncGenerator[bytes]:
        async for event in _healthy(events):
            yield event
        yield broken
        async for event in events:
            yield event

    return play


_invalid_utf8 = _with_event(
    b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe\xc3("}}]}\n\n'
)
_invalid_json = _with_event(b'data: {"choices":[{"index":0,"delta":{"content": \n\n')
_no_object = _with_event(b'data: [{"choices": 7}]\n\n')


async def _long_line(events: Events) -> AsyncGenerator[bytes]:
    async for event in _healthy(events):
        yield event
    yield b'data: {"choices":[{"index":0,"delta":{"content":"'
    for _ in range(LONG_LINE_BYTES // len(PIECE)):
        yield PIECE
    yield b'"}}]}\n\n'


async def _close_later(events: Events) -> AsyncGenerator[bytes]:
    async for event in _healthy(events):
        yield event
    await asyncio.sleep(PAUSE_S)
    raise Closed


async def _close_in_an_event(events: Events) -> AsyncGenerator[bytes]:
    async for event in _healthy(events):
        yield event
    event = await anext(events)
    yield event[: len(event) // 2]
    await asyncio.sleep(PAUSE_S)
    raise Closed


async def _end_early(events: Events) -> AsyncGenerator[bytes]:
    """End properly, as far as HTTP goes, without a finish reason."""
    async for event in _healthy(events):
        yield event


async def _filter(events: Events) -> AsyncGenerator[bytes]:
    async for event in _healthy(events):
        yield event
    choice = {"index": 0, "delta": {}, "finish_reason": "content_filter"}
    yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


STREAMS: Mapping[str, Callable[[Events], AsyncGenerator[bytes]]] = {
    "hangs": _hang,
    "hangs later": _hang_later,
    "pings forever": _ping_forever,
    "drips": _drip,
    "invalid UTF-8": _invalid_utf8,
    "invalid JSON": _invalid_json,
    "no object": _no_object,
    "a long line": _long_line,
    "closes": _close_later,
    "closes in an event": _close_in_an_event,
    "ends early": _end_early,
    "content filter": _filter,
}
"""What becomes of the events of a stream."""

BEFORE_HEADERS = ("closes before headers", "hangs before headers")
"""What happens instead of an answer."""
