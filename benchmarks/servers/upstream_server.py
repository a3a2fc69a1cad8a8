"""A model server that only sends recorded frames, for the cost of what stands before it.

It speaks both protocols that this server reads: Chat Completions, and vLLM's tokens in and out. It
sends one token for each iteration of the event loop, as fast as it can.

    BENCH_TOKENS=256 BENCH_TOKEN_ID=7 uvicorn benchmarks.servers.upstream_server:app
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.servers.asgi import Message, Receive, Send, read_body, run_lifespan

TOKENS = int(os.environ["BENCH_TOKENS"])
TOKEN_ID = int(os.environ["BENCH_TOKEN_ID"])
MODEL_ROOT = os.environ["BENCH_MODEL_ROOT"]
WORD = " word"
USAGE = {"prompt_tokens": 40, "completion_tokens": TOKENS, "total_tokens": 40 + TOKENS}
CONTEXT_LENGTH = 131_072
MARK = b"event: chat.delta\n"
"""The load generator counts these lines; clients of model servers skip them."""


def _frame(fields: dict[str, Any], *, mark: bytes = b"") -> bytes:
    return mark + b"data: " + json.dumps(fields).encode() + b"\n\n"


def _chat_frames() -> Sequence[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench"}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    return [
        _frame(chunk({"role": "assistant", "content": ""})),
        *(_frame(chunk({"content": WORD}), mark=MARK) for _ in range(TOKENS)),
        _frame(chunk({}, "length")),
        _frame({**head, "choices": [], "usage": USAGE}),
        b"data: [DONE]\n\n",
    ]


def _token_frames() -> Sequence[bytes]:
    def chunk(finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": WORD, "token_ids": [TOKEN_ID], "finish_reason": finish}
        return {"request_id": "run-1", "choices": [choice]}

    return [
        *(_frame(chunk(None)) for _ in range(TOKENS - 1)),
        _frame(chunk("length")),
        _frame({"request_id": "run-1", "choices": [], "usage": USAGE}),
        b"data: [DONE]\n\n",
    ]


MODELS = {
    "object": "list",
    "data": [
        {"id": "bench", "object": "model", "root": MODEL_ROOT, "max_model_len": CONTEXT_LENGTH}
    ],
}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/models": MODELS,
    "/health": {},
    "/detokenize": {"prompt": WORD},
}
STREAMS = {"/v1/chat/completions": _chat_frames(), "/inference/v1/generate": _token_frames()}
STREAM_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await run_lifespan(receive, send)
        return
    body = await read_body(receive)
    frames, answer = STREAMS.get(scope["path"]), ANSWERS.get(scope["path"])
    if frames is None:
        await _answer(send, 404 if answer is None else 200, answer or {})
    elif b'"stream"' not in body:  # a probe, to see whether the route is there
        await _answer(send, 422, {"error": {"message": "a field is missing"}})
    else:
        await send(STREAM_START)
        for frame in frames:
            await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, fields: dict[str, Any]) -> None:
    body = json.dumps(fields).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
