"""A long event is sent in portions, and nothing comes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from types import SimpleNamespace
from typing import Any

from antiphon.application.ports import EventBatches, WriteBatch
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.domain.access.callers import ANYBODY
from antiphon.domain.events import Error, Event
from antiphon.entrypoints.http.wire.asgi_responses import (
    BYTES_IN_WORK,
    PORTION_BYTES,
    EventStreamResponse,
)
from antiphon.entrypoints.http.wire.sse import KEEPALIVE, ClientEncoder, KeepAlive

LIMIT_S = 30.0
CHECK_S = 0.001
EVENTS = [
    Error(sequence_number=number, code=None, message="x" * size)
    for number, size in enumerate((10, 3 * PORTION_BYTES, 10))
]


class Events(EventBatches):
    """The events above, one in each batch."""

    async def forward(self, write: WriteBatch) -> None:
        for event in EVENTS:
            rest: Awaitable[None] | None = write([event])
            if rest is not None:
                await rest

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Sequence[Event]:
        raise StopAsyncIteration

    async def aclose(self) -> None: ...


async def _leave() -> None: ...


async def _stay() -> Any:
    await asyncio.Event().wait()


async def _sent_to(reader: Any, keepalive_s: float) -> list[bytes]:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if body := message.get("body"):
            sent.append(body)
            await reader(body)

    response = EventStreamResponse(
        Events(), {}, leave=_leave, keepalive=KeepAlive(keepalive_s), encoder=ClientEncoder()
    )
    async with asyncio.timeout(LIMIT_S):
        app = SimpleNamespace(state={BYTES_IN_WORK: BytesInWork()})
        await response({"state": {}, "litestar_app": app, "auth": ANYBODY}, _stay, send)  # type: ignore[typeddict-item]
    return sent


async def test_a_long_event_is_sent_in_portions() -> None:
    async def read(_: bytes) -> None: ...

    sent = await _sent_to(read, 0)
    assert max(map(len, sent)) == PORTION_BYTES
    assert b"".join(sent).startswith(ClientEncoder().frames(EVENTS))
    assert len(sent) == len(EVENTS) + 3  # a long one takes four


async def test_no_comment_comes_between_the_portions_of_an_event() -> None:
    async def read_slowly(body: bytes) -> None:
        if body != KEEPALIVE:
            await asyncio.sleep(20 * CHECK_S)

    sent = await _sent_to(read_slowly, CHECK_S)
    assert KEEPALIVE in sent
    assert ClientEncoder().frames(EVENTS[1:2]) in b"".join(sent)
