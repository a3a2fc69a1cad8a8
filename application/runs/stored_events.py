"""Read a run's events from the store, on other servers or after this process dropped its log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from msgspec import Struct

from antiphon.application.ports import (
    EventBatches,
    EventChunk,
    EventStore,
    LogSlice,
    Store,
    WriteBatch,
)
from antiphon.application.progress.records import AnyRecord, decode_records
from antiphon.application.runs.event_chunks import decode_chunk, progress_of
from antiphon.application.support.bytes_in_work import STREAM_WAIT_S, HeldBytes
from antiphon.application.support.event_batches import cut_batch
from antiphon.application.support.retry import retry
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import CorruptLog, NotFound, StoreError
from antiphon.domain.events import TERMINAL, Error, Event
from antiphon.domain.responses.response import TERMINAL as TERMINAL_STATUSES

MAX_BATCH = 256
"""Events that a reader gets before other tasks may run."""

MAX_WAIT_S = 10.0
"""The longest wait for a notification of new events; then the log is read anyway."""

RETRY_S = 10.0

READ_BYTES = 512 * 1024
"""About how much of a log a reader has at a time."""

DECODED = 4
"""Times the bytes of its chunk that an event takes in memory: its objects, and their texts."""

DELETED = ("response_deleted", "The response was deleted while it was streamed.")
UNAVAILABLE = (
    "stream_unavailable",
    "The events of this response cannot be read to their end; retrieve it without 'stream'.",
)


class StoredLog(Struct, frozen=True, kw_only=True):
    """The events that a run has logged so far, and its progress."""

    events: Sequence[Event]
    records: Sequence[AnyRecord] = ()


async def read_log(store: EventStore, tenant: str, response_id: str) -> StoredLog:
    """Return what a run has logged so far. Raises: NotFound; CorruptLog; StoreError."""
    events: list[Event] = []
    records: list[AnyRecord] = []
    while True:
        after = events[-1].sequence_number if events else -1
        log_slice = await store.read_events(tenant, response_id, after=after)
        for chunk in log_slice.chunks:
            events += await _events_after(events[-1].sequence_number if events else -1, chunk)
            if progress := progress_of(chunk):
                records += decode_records(progress)
        if log_slice.ends or not log_slice.chunks:
            return StoredLog(events=events, records=records)


async def next_events(store: EventStore, tenant: str, response_id: str, after: int) -> list[Event]:
    """Return events after number `after` that a run has logged: all of about READ_BYTES.

    Raises: NotFound; CorruptLog; StoreError.
    """
    events: list[Event] = []
    log_slice = await store.read_events(tenant, response_id, after=after, limit_bytes=READ_BYTES)
    for chunk in log_slice.chunks:
        events += await _events_after(events[-1].sequence_number if events else after, chunk)
    return events


async def _events_after(last: int, chunk: EventChunk) -> list[Event]:
    """Return the chunk's events after number `last`. Raises: CorruptLog."""
    if chunk.first > last + 1:
        raise CorruptLog(f"The events from number {last + 1} to {chunk.first - 1} are missing.")
    events = await run_in_thread(len(chunk.body), decode_chunk, chunk)
    return events[last + 1 - chunk.first :]


async def log_of(store: EventStore, tenant: str, response_id: str) -> Sequence[Event]:
    """Return the events that a run has logged so far; raises what `read_log` raises."""
    return (await read_log(store, tenant, response_id)).events


class StoredEvents(EventBatches):
    """The events after number `after`, up to a terminal event, as they are stored.

    If the response is deleted meanwhile, or its log is damaged, an `error` event ends the stream;
    no event is left out. Cancelling a wait for events loses none of them.
    """

    def __init__(
        self,
        store: Store,
        tenant: str,
        response_id: str,
        *,
        after: int = -1,
        retry_s: float = RETRY_S,
        held: HeldBytes | None = None,
    ) -> None:
        self._store = store
        self._ids = (tenant, response_id)
        self._retry_s = retry_s
        self._held = held
        self._after = self._last = max(after, -1)
        self._chunks: deque[EventChunk] = deque()
        self._ready: deque[Event] = deque()
        self._has_last_chunk = False
        self._is_over = False
        self._must_yield = False

    @classmethod
    async def open(
        cls,
        store: Store,
        tenant: str,
        response_id: str,
        *,
        after: int = -1,
        held: HeldBytes | None = None,
    ) -> StoredEvents:
        """Raises: NotFound if the store has no log of this response; ConcurrencyLimitExceeded,
        ServerOverloaded if there is no room for it.
        """
        reader = cls(store, tenant, response_id, after=after, held=held)
        reader._add(await reader._read_log(reader._last))
        if held is not None:
            held.resize(reader._size(held))
        return reader

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if self._must_yield:  # a long replay must not block the event loop
            self._must_yield = False
            await asyncio.sleep(0)
        if not self._ready and not self._is_over:
            try:
                await self._wait_for_events()
            except (NotFound, StoreError) as exc:
                self._end_with_error(*await self._error_of(exc))
        if not self._ready:
            raise StopAsyncIteration
        batch = cut_batch([*islice(self._ready, MAX_BATCH)])
        for _ in batch:
            self._ready.popleft()
        self._must_yield = bool(self._ready)
        return batch

    async def aclose(self) -> None:
        self._is_over = True
        self._ready.clear()
        self._chunks.clear()
        self._release()

    def __del__(self) -> None:
        self._release()

    async def _wait_for_events(self) -> None:
        while not self._ready and not self._is_over:
            if self._chunks:
                await self._wait_for_room()
                await self._decode(self._chunks[0])
                self._chunks.popleft()
            elif self._has_last_chunk:
                await self._check_end()
                self._is_over = True
            else:
                log_slice = await self._read_log(self._last)
                self._add(log_slice)
                if not log_slice.chunks and not log_slice.ends:
                    self._release()
                    await retry(self._wait_for_log, self._retry_s)

    async def _check_end(self) -> None:
        """Raises: CorruptLog if the log ends without a terminal event."""
        # If no event follows `after`, that is the end itself, or beyond it, or the end is missing.
        is_past_end = False
        if self._last == self._after >= 0:
            before = self._after - 1
            log_slice = await self._read_log(before)
            events = [e for chunk in log_slice.chunks for e in await _events_after(before, chunk)]
            is_past_end = not events or isinstance(events[-1], TERMINAL)
        if not is_past_end:
            raise CorruptLog(f"The log has no end after number {self._last}.")

    async def _read_log(self, after: int) -> LogSlice:
        read = partial(self._store.read_events, *self._ids, after=after, limit_bytes=READ_BYTES)
        return await retry(read, self._retry_s)

    async def _wait_for_log(self) -> None:
        await self._store.wait_for_events(*self._ids, after=self._last, limit_s=MAX_WAIT_S)

    def _add(self, log_slice: LogSlice) -> None:
        self._chunks.extend(log_slice.chunks)
        self._has_last_chunk = log_slice.ends

    async def _wait_for_room(self) -> None:
        if self._held is not None:
            await self._held.wait_for(self._size(self._held), timeout_s=STREAM_WAIT_S)

    def _size(self, held: HeldBytes) -> int:
        """Return the bytes of the chunks, of which the first is decoded next."""
        sizes = [len(chunk.body) for chunk in self._chunks]
        return min(sum(sizes) + DECODED * sizes[0], held.most) if sizes else 0

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()

    async def _decode(self, chunk: EventChunk) -> None:
        events = await _events_after(self._last, chunk)
        if events:
            self._ready.extend(events)
            self._last = events[-1].sequence_number
            self._is_over = isinstance(events[-1], TERMINAL)

    async def _error_of(self, exc: NotFound | StoreError) -> tuple[str, str]:
        if isinstance(exc, StoreError):
            return UNAVAILABLE
        try:
            await self._store.get_response(*self._ids)
        except NotFound:
            return DELETED
        except StoreError:
            pass
        return UNAVAILABLE

    def _end_with_error(self, code: str, message: str) -> None:
        self._is_over = True
        # Not an event of the run: it repeats the last number, so that a client that resumes after
        # that number misses nothing.
        self._ready.append(Error(sequence_number=self._last, code=code, message=message))


class FollowedEvents(EventBatches):
    """A run's events from the log of this process and, if that breaks off, from the store."""

    def __init__(
        self,
        local: EventBatches,
        store: Store,
        tenant: str,
        response_id: str,
        *,
        after: int = -1,
        held: HeldBytes | None = None,
    ) -> None:
        self._batches = local
        self._held = held
        self._is_local = True
        self._store = store
        self._ids = (tenant, response_id)
        self._after = self._last = max(after, -1)
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        try:
            batch = await anext(self._batches)
        except StopAsyncIteration:
            if self._is_over or not self._is_local or await self._is_past_end():
                self._is_over = True
                raise
            self._is_local = False
            self._batches = StoredEvents(self._store, *self._ids, after=self._last, held=self._held)
            batch = await anext(self._batches)
        self._note(batch)
        return batch

    async def forward(self, write: WriteBatch) -> None:
        def write_and_note(batch: Sequence[Event]) -> Awaitable[None] | None:
            self._note(batch)
            return write(batch)

        await self._batches.forward(write_and_note)
        await super().forward(write)  # what the store has after them, if anything

    def _note(self, batch: Sequence[Event]) -> None:
        self._last = batch[-1].sequence_number
        self._is_over = isinstance(batch[-1], TERMINAL)

    async def aclose(self) -> None:
        self._is_over = True
        await self._batches.aclose()

    async def _is_past_end(self) -> bool:
        """Return whether the reader started after the end of a log that only this process has."""
        if self._last != self._after:
            return False
        with suppress(NotFound, StoreError):
            has_ended = (await self._store.get_response(*self._ids)).status in TERMINAL_STATUSES
            return has_ended and not await self._is_in_store()
        return False

    async def _is_in_store(self) -> bool:
        try:
            await self._store.read_events(*self._ids, after=self._last)
        except NotFound:
            return False
        return True
