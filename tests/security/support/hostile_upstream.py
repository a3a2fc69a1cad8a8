"""A model server that attacks its client: each attack is a model of its own.

It is a raw server on loopback in a thread: no library would write these answers. What a model
attacks with is the first part of its path; see ATTACKS.
"""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Write = Callable[[bytes], Awaitable[None]]
"""Sends bytes, as fast as the client takes them."""
Attack = Callable[[Write], Awaitable[None]]

MODEL = "hostile"
CONTEXT_LENGTH = 131_072
BATCH_BYTES = 64 * 1024
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
GZIP_BYTES = 2_000_000_000


def event(delta: Json | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, **fields.pop("choice", {})}
    chunk = {"choices": [choice], **fields}
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def whole(*events: bytes, usage: str | None = None, before: bytes = b"") -> Attack:
    """An answer that ends: with these events, and this usage as JSON text."""

    async def attack(write: Write) -> None:
        await write(
            before + HEAD + b"\r\n" + b"".join(events) + event(choice={"finish_reason": "stop"})
        )
        if usage is not None:
            await write(b'data: {"choices":[],"usage":%b}\n\n' % usage.encode())
        await write(b"data: [DONE]\n\n")

    return attack


async def _endless(write: Write, unit: bytes, *, head: bytes = HEAD + b"\r\n") -> None:
    """Send the same bytes for ever, in batches."""
    await write(head)
    batch = unit * max(1, BATCH_BYTES // len(unit))
    while True:
        await write(batch)


async def _gzipped_events(write: Write) -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    await write(HEAD + b"content-encoding: gzip\r\n\r\n")
    piece = event({"content": "a" * 1000}) * 1000
    for _ in range(GZIP_BYTES // len(piece)):
        await write(compressor.compress(piece))
    await write(compressor.flush())


async def _headers(write: Write) -> None:
    await write(HEAD)
    for number in count():
        await write(b"x-%d: %b\r\n" % (number, b"y" * 4000))


def _logprobs(tokens: int, alternatives: int) -> Json:
    tops = [{"token": f"t{n}", "logprob": -1.0, "bytes": [65]} for n in range(alternatives)]
    one = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": tops}
    return {"logprobs": {"content": [one] * tokens}}


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
ATTACKS: Mapping[str, Attack] = {
    "text": partial(_endless, unit=event({"content": "word " * 40})),
    "letters": partial(_endless, unit=event({"content": "x"})),
    "long-text": partial(_endless, unit=event({"content": "x" * 1_000_000})),
    "reasoning": partial(_endless, unit=event({"reasoning_content": "hm " * 40})),
    "refusal": partial(_endless, unit=event({"refusal": "no " * 40})),
    "arguments": partial(
        _endless,
        unit=event(
            {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "1" * 40}}]}
        ),
    ),
    "blanks": partial(_endless, unit=event({"content": " "})),
    "text-in-call": partial(
        _endless,
        unit=event({"content": "word "}),
        head=HEAD
        + b"\r\n"
        + event({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}),
    ),
    "empty-events": partial(_endless, unit=event()),
    "comments": partial(_endless, unit=b": ping\n\n"),
    "blank-lines": partial(_endless, unit=b"\n"),
    "gzip": _gzipped_events,
    "interim": partial(_endless, unit=INTERIM, head=b""),
    "headers": _headers,
    "logprobs": partial(_endless, unit=event({"content": "a"}, choice=_logprobs(1, 20_000))),
    "logprobs-of-many-tokens": partial(
        _endless, unit=event({"content": "a"}, choice=_logprobs(20_000, 0))
    ),
}
"""Answers without an end, by the name of the model that gives them."""

USAGES: Mapping[str, str] = {
    "usage-beyond-2-63": '{"prompt_tokens":9223372036854775808,"completion_tokens":1e30}',
    "usage-negative": '{"prompt_tokens":-1000000,"completion_tokens":-1000000}',
    "usage-zero": '{"prompt_tokens":0,"completion_tokens":0}',
    "usage-text": '{"prompt_tokens":"many","completion_tokens":[]}',
}
"""What a server says that a short answer has cost, by the name of its model."""

ANSWERS: Mapping[str, Attack] = {
    "hello": whole(event({"content": "Hello."})),
    "hello-after-interim": whole(event({"content": "Hello."}), before=INTERIM * 3),
    **ATTACKS,
    **{name: whole(event({"content": "Hello."}), usage=usage) for name, usage in USAGES.items()},
}


class HostileUpstream:
    def __init__(self) -> None:
        self.origin = ""
        self._started = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10), "the upstream did not start"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the upstream did not stop"

    def write_settings(self, file: Path, names: Sequence[str], more: str = "") -> Path:
        """Write a file of settings with these models; `more` are options of each."""
        tables = [
            f'[[models]]\nname = "{name}"\nengine = "chat"\nurl = "{self.origin}/{name}/v1"\n'
            f'model = "{MODEL}"\n{more}\n'
            for name in names
        ]
        file.write_text("\n".join(tables), encoding="utf-8")
        return file

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)

        async def write(content: bytes) -> None:
            writer.write(content)
            await writer.drain()

        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, write):
                    pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, write: Write) -> bool:
        """Answer one request. Return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        _, _, rest = head.partition("content-length:")
        await reader.readexactly(int(rest.split("\r\n")[0]) if rest else 0)
        name, _, path = head.split(" ")[1].removeprefix("/").partition("/")
        if path.endswith(("chat/completions", "embeddings", "page")):
            await ANSWERS[name](write)
            return False
        status, body = 404, b"{}"
        if path.endswith("models"):
            card = {"id": MODEL, "max_model_len": CONTEXT_LENGTH, "owned_by": "vllm"}
            status, body = 200, json.dumps({"data": [card]}).encode()
        await write(
            b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )
        return True


@contextmanager
def hostile_upstream() -> Iterator[HostileUpstream]:
    server = HostileUpstream()
    server.start()
    try:
        yield server
    finally:
        server.close()
