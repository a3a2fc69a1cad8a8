"""The baseline: a bare ASGI app that only sends recorded frames.

No server can spend less on a stream of these bytes. It has no engine, no parser, no JSON, and no
framework: only one `send` per event, and one iteration of the event loop before each delta, as an
engine with one token per step would cause.

    REPLAY_BODY=frames.sse uvicorn benchmarks.servers.baseline:app --loop uvloop --http httptools

With REPLAY_TOKENS_PER_S, the deltas of all streams come together at this pace, as in the steps of
an engine. It is also the upstream of gateways, so it lists a model.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from benchmarks.servers.asgi import Message, Receive, Send, read_body, run_lifespan

TOKENS_PER_S = float(os.environ.get("REPLAY_TOKENS_PER_S", "0"))
MODEL = "replay"
BODY = Path(os.environ["REPLAY_BODY"]).read_bytes()
FRAMES = [frame + b"\n\n" for frame in BODY.split(b"\n\n") if frame]
IS_DELTA = [b".delta\n" in frame for frame in FRAMES]


def _final_response() -> bytes:
    """Return the JSON of the response, as the event that ends the run has it."""
    ends = (b"event: response.completed", b"event: response.incomplete")
    frame = next(each for each in FRAMES if each.startswith(ends))
    response = json.loads(frame.partition(b"data: ")[2])["response"]
    return json.dumps(response, separators=(",", ":")).encode()


RESPONSE = _final_response()
STREAM_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
JSON_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(RESPONSE)).encode()),
    ],
}


MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()


class _Steps:
    """The steps of an engine: each wakes up all streams that wait for their next token."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._last_at = 0.0

    def wait(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            self._last_at = max(self._last_at + 1 / TOKENS_PER_S, loop.time())
            loop.call_at(self._last_at, self._wake)
        waiter = loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def _wake(self) -> None:
        woken, self._waiting = self._waiting, []
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)


STEPS = _Steps()


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await run_lifespan(receive, send)
        return
    body = await read_body(receive)
    if not scope["path"].endswith("/responses"):
        await _send_json(send, MODELS)
        return
    wants_stream = b'"stream": true' in body or b'"stream":true' in body
    if not wants_stream:
        await send(JSON_START)
        await send({"type": "http.response.body", "body": RESPONSE})
        return
    await send(STREAM_START)
    for frame, is_delta in zip(FRAMES, IS_DELTA, strict=True):
        if is_delta:
            await (STEPS.wait() if TOKENS_PER_S else asyncio.sleep(0))
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send_json(send: Send, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
