"""A run and its events, a store that fails on request, and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import EventBatches, EventChunk, Lease, NewRun, StoredResponse
from antiphon.application.runs.event_chunks import encode_chunk
from antiphon.domain import deltas as d
from antiphon.domain.errors import StoreError
from antiphon.domain.events import Event
from antiphon.domain.responses.response import Response
from antiphon.domain.sequencer import Sequencer

T = TypeVar("T")

TENANT = "tenant"
ID = "resp_1"
OWNER = "srv_1"
LEASE = Lease(tenant=TENANT, response_id=ID, epoch=1)


def sequencer() -> Sequencer:
    numbers = count(1)
    return Sequencer(
        Response(id=ID, created_at=100, model="m"),
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        now=lambda: 101.5,
    )


def feed_words(seq: Sequencer, *texts: str) -> list[Event]:
    return [event for text in texts for event in seq.feed(d.TextDelta(text))]


def numbers(events: Sequence[Event]) -> list[int]:
    return [event.sequence_number for event in events]


async def create_run(store: MemoryStore, seq: Sequencer, *, durable: bool = True) -> list[Event]:
    """Create the response, and its log if the run is durable; return its first events."""
    first = [*seq.open(), *seq.start()]
    run = NewRun(owner=OWNER, events=encode_chunk(first) if durable else None)
    await store.create_response(TENANT, StoredResponse(response=seq.response, run=run))
    return first


async def read_rest(batches: EventBatches) -> list[Event]:
    return [event async for batch in batches for event in batch]


async def run_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class FailingStore(MemoryStore):
    """A memory store whose writes wait for `gate`, and fail if `fails` returns True.

    With `lost_answer`, a failed write is written nevertheless.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.writes = 0
        self.fails: Callable[[int], bool] = lambda _: False
        self.lost_answer = False

    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        return await self._write(lambda: MemoryStore.append_events(self, lease, events))

    async def finish_response(self, lease: Lease, response: Response, **options: Any) -> bool:
        return await self._write(
            lambda: MemoryStore.finish_response(self, lease, response, **options)
        )

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T:
        await self.gate.wait()
        self.writes += 1
        if not self.fails(self.writes):
            return await write()
        if self.lost_answer:
            await write()
        raise StoreError("the disk is full")
