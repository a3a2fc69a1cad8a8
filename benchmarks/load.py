"""A cheap load generator: raw protocols, counting bytes instead of decoding JSON.

Each connection sends one request after another and counts delta frames. It does not check texts:
the tests do.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import uvloop

T = TypeVar("T")

RUN_LIMIT_S = 300.0
_DELTA = b".delta\n"  # the end of the line `event: response.output_text.delta`
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")


class LoadFailed(Exception):
    """The server did not respond as expected, so the figures of this run are meaningless."""


@dataclass(kw_only=True)
class Outcome:
    """The results of one run. `first_s` is the time to the first body byte of each request."""

    requests: int
    deltas: int = 0
    bytes: int = 0
    wall_s: float = 0.0
    first_s: list[float] = field(default_factory=list)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of them do not exceed.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def request_of(
    port: int, body: dict[str, Any], *, key: str = "", path: str = "/v1/responses"
) -> bytes:
    """Return the whole HTTP request that creates a response."""
    content = json.dumps(body).encode()
    credential = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\n"
        f"host: 127.0.0.1:{port}\r\n"
        "accept: */*\r\n"
        f"{credential}"
        "content-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def run(port: int, request: bytes, *, requests: int, concurrency: int) -> Outcome:
    """Send `request` so many times over `concurrency` connections. Raises: LoadFailed."""
    return uvloop.run(_run(port, request, requests, concurrency))


def record(port: int, request: bytes) -> bytes:
    """Return the body of one streamed answer, without its chunk framing."""
    return uvloop.run(_record(port, request))


async def _run(port: int, request: bytes, requests: int, concurrency: int) -> Outcome:
    outcome = Outcome(requests=requests)
    remaining = iter(range(requests))  # shared: each connection takes the next one

    async def keep_asking() -> None:
        connection = await _connect(port)
        try:
            for _ in remaining:
                answer = await connection.ask(request)
                outcome.deltas += answer.deltas
                outcome.bytes += answer.size
                outcome.first_s.append(answer.first_s)
        finally:
            connection.close()

    began = time.perf_counter()
    # Not a TaskGroup, so that the first failure is raised without an ExceptionGroup.
    connections = (keep_asking() for _ in range(min(concurrency, requests)))
    await _bounded(asyncio.gather(*connections))
    outcome.wall_s = time.perf_counter() - began
    return outcome


async def _record(port: int, request: bytes) -> bytes:
    connection = await _connect(port, keep=True)
    try:
        answer = await _bounded(connection.ask(request))
    finally:
        connection.close()
    return _unchunked(b"".join(answer.kept))


async def _bounded(work: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(work, RUN_LIMIT_S)
    except TimeoutError:
        raise LoadFailed(f"the server was not done after {RUN_LIMIT_S:.0f} s") from None


def _unchunked(framed: bytes) -> bytes:
    """Return the body without its chunked transfer coding.

    >>> _unchunked(b"3\\r\\nabc\\r\\n2\\r\\nde\\r\\n0\\r\\n\\r\\n")
    b'abcde'
    """
    body: list[bytes] = []
    at = 0
    while True:
        line_end = framed.index(b"\r\n", at)
        size = int(framed[at:line_end], 16)
        if size == 0:
            return b"".join(body)
        body.append(framed[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2


async def _connect(port: int, *, keep: bool = False) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(keep=keep), "127.0.0.1", port)
    return connection


class Answer:
    """One answer while it arrives; `kept` are its body's reads, where they are wanted."""

    def __init__(self) -> None:
        self.asked_at = time.perf_counter()
        self.first_s = 0.0
        self.size = 0
        self.deltas = 0
        self.kept: list[bytes] = []
        self.head = b""
        self.length: int | None = None  # None: chunked
        self.tail = b""
        self.over: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()


class Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._answer: Answer | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport, but not its class.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.over.done():
            failed = LoadFailed(f"the server closed a connection early ({exc})")
            self._answer.over.set_exception(failed)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes) -> Answer:
        assert self._transport is not None
        self._answer = Answer()
        self._transport.write(request)
        return await self._answer.over

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.over.done():
            return
        if not answer.head or not answer.head.endswith(_HEAD_END):
            data = self._past_head(answer, data)
            if not data:
                return
        if not answer.size:
            answer.first_s = time.perf_counter() - answer.asked_at
        answer.size += len(data)
        if self._keep:
            answer.kept.append(data)
        if answer.length is not None:
            if answer.size >= answer.length:
                answer.over.set_result(answer)
            return
        # One byte less than the marker is carried over: a marker that two reads share is counted
        # once, and one that was counted before cannot be in it.
        seen = answer.tail + data
        answer.deltas += seen.count(_DELTA)
        answer.tail = seen[-len(_DELTA) + 1 :]
        if seen.endswith(_LAST_CHUNK):
            answer.over.set_result(answer)

    def _past_head(self, answer: Answer, data: bytes) -> bytes:
        received = answer.head + data
        end = received.find(_HEAD_END)
        if end < 0:
            answer.head = received
            return b""
        answer.head = received[: end + len(_HEAD_END)]
        status = answer.head[9:12]
        if status != b"200":
            answer.over.set_exception(LoadFailed(f"status {status.decode()}: {received!r}"))
            return b""
        if length := _LENGTH.search(answer.head):
            answer.length = int(length[1])
        return received[len(answer.head) :]
