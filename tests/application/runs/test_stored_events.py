"""Readers of a log in the store get the same events on every server, or an error event."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.application.event_log_fixtures import (
    ID,
    LEASE,
    TENANT,
    create_run,
    feed_words,
    numbers,
    read_rest,
    run_loop,
    sequencer,
)

from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import EventBatches, EventChunk, LogSlice
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.runs.event_chunks import encode_chunk
from antiphon.application.runs.stored_events import MAX_BATCH, FollowedEvents, StoredEvents, log_of
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.domain import events as e
from antiphon.domain.errors import (
    ConcurrencyLimitExceeded,
    CorruptLog,
    NotFound,
    RequestError,
    StoreError,
)
from antiphon.domain.events import Event
from antiphon.domain.sequencer import Sequencer


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def seq() -> Sequencer:
    return sequencer()


@pytest.fixture
async def first(store: MemoryStore, seq: Sequencer) -> list[Event]:
    return await create_run(store, seq)


async def append(store: MemoryStore, events: Sequence[Event]) -> Sequence[Event]:
    assert await store.append_events(LEASE, encode_chunk(events))
    return events


async def finish(store: MemoryStore, seq: Sequencer) -> list[Event]:
    end = seq.complete()
    assert await store.finish_response(LEASE, seq.response, events=encode_chunk(end))
    return end


async def open_reader(store: MemoryStore, after: int = -1) -> EventBatches:
    return await StoredEvents.open(store, TENANT, ID, after=after)


async def test_a_log_can_be_read_after_any_number(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    events = [*first, *await append(store, feed_words(seq, "a", "b")), *await finish(store, seq)]
    assert await log_of(store, TENANT, ID) == events
    for after in range(-1, len(events)):
        assert await read_rest(await open_reader(store, after)) == events[after + 1 :]
    assert await read_rest(await open_reader(store, 99)) == []


async def test_a_reader_gets_later_events(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    reader = await open_reader(store)
    assert await anext(reader) == first
    waiting = asyncio.ensure_future(anext(reader))
    await run_loop()
    assert not waiting.done()
    said = await append(store, feed_words(seq, "a"))
    assert await waiting == said
    end = await finish(store, seq)
    assert await read_rest(reader) == end


async def test_a_cancelled_wait_loses_no_events(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    reader = await open_reader(store, after=1)
    waiting = asyncio.ensure_future(anext(reader))
    for _ in range(5):
        await run_loop()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        waiting = asyncio.ensure_future(anext(reader))
    said = await append(store, feed_words(seq, "a"))
    assert await waiting == said


async def test_what_a_reader_has_read_counts_as_work_until_it_waits_or_leaves(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    said = await append(store, feed_words(seq, *"x" * (3 * MAX_BATCH)))
    work = BytesInWork()
    reader = await FollowResponse(MemoryEventLog(), store, bytes_in_work=work)(TENANT, ID)
    assert await anext(reader) == first
    unread = len(said) - len(await anext(reader))
    assert work.held_by(TENANT) > 3 * MAX_BATCH * len("response.output_text.delta")
    while unread:
        unread -= len(await anext(reader))
    waiting = asyncio.ensure_future(anext(reader))
    await run_loop()
    assert work.held_by(TENANT) == 0
    await append(store, feed_words(seq, *"y" * (3 * MAX_BATCH)))
    await waiting
    assert work.held_by(TENANT)
    await reader.aclose()
    assert work.held_by(TENANT) == 0


async def test_a_log_is_not_read_where_the_tenant_has_no_room(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    await append(store, feed_words(seq, *"x" * (3 * MAX_BATCH)))
    work = BytesInWork(max_bytes=400_000)
    follow = FollowResponse(MemoryEventLog(), store, bytes_in_work=work)
    with work.hold(TENANT, "requests") as held:
        held.resize(150_000)
        with pytest.raises(ConcurrencyLimitExceeded):
            await follow(TENANT, ID)
    assert work.held_by(TENANT) == 0


async def test_a_log_that_is_longer_than_a_tenants_room_can_be_read(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    said = await append(store, feed_words(seq, *"x" * (30 * MAX_BATCH)))
    events = [*first, *said, *await finish(store, seq)]
    work = BytesInWork(max_bytes=400_000)
    follow = FollowResponse(MemoryEventLog(), store, bytes_in_work=work)
    assert await read_rest(await follow(TENANT, ID)) == events


async def test_a_long_log_comes_in_batches(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    await append(store, feed_words(seq, *"x" * (3 * MAX_BATCH)))
    await finish(store, seq)
    batches = [len(batch) async for batch in await open_reader(store)]
    assert max(batches) == MAX_BATCH


async def test_a_missing_log_is_not_found(store: MemoryStore, seq: Sequencer) -> None:
    with pytest.raises(NotFound):
        await open_reader(store)
    await create_run(store, seq, durable=False)
    with pytest.raises(NotFound):
        await open_reader(store)


async def test_readers_of_a_deleted_response_get_an_error_event(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    reader = await open_reader(store)
    await anext(reader)
    waiting = asyncio.ensure_future(read_rest(reader))
    await run_loop()
    await store.delete_response(TENANT, ID)
    [error] = await waiting
    assert isinstance(error, e.Error)
    assert (error.code, error.sequence_number) == ("response_deleted", first[-1].sequence_number)


class DamagedStore(MemoryStore):
    """Damages every chunk after the first."""

    def __init__(self, damage: str) -> None:
        super().__init__()
        self.damage = damage

    async def append_events(self, lease: object, events: EventChunk) -> bool:
        return await super().append_events(lease, self.damaged(events))  # type: ignore[arg-type]

    def damaged(self, chunk: EventChunk) -> EventChunk:
        match self.damage:
            case "a flipped bit":
                return replace(chunk, body=chunk.body[:-9] + b"?" + chunk.body[-8:])
            case "a lost line":
                return replace(chunk, body=b"\n".join(chunk.body.split(b"\n")[:-2]))
            case "no checksum":
                return replace(chunk, body=b"")
            case "another number":
                return replace(chunk, count=chunk.count + 1)
        return encode_chunk(
            [e.Compacting(sequence_number=chunk.first, item_id="x", output_index=0)]
        )


@pytest.mark.parametrize(
    "damage", ["a flipped bit", "a lost line", "no checksum", "another number"]
)
async def test_a_damaged_log_ends_with_an_error_event_and_skips_no_event(
    damage: str, seq: Sequencer
) -> None:
    store = DamagedStore(damage)
    first = await create_run(store, seq)
    await append(store, feed_words(seq, "a", "b"))
    events = await read_rest(await open_reader(store))
    assert events[:-1] == first
    assert isinstance(events[-1], e.Error)
    assert events[-1].code == "stream_unavailable"
    with pytest.raises(CorruptLog):
        await log_of(store, TENANT, ID)


@pytest.mark.parametrize("after", [-1, 0, 1])
async def test_a_log_without_an_end_ends_with_an_error_event(
    after: int, store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    seq.complete()
    await store.finish_response(LEASE, seq.response)  # as if the last chunk were lost
    events = await read_rest(await open_reader(store, after))
    assert events[:-1] == first[after + 1 :]
    assert isinstance(events[-1], e.Error)
    assert events[-1].code == "stream_unavailable"


class AwayStore(MemoryStore):
    """Its logs cannot be read while it is away."""

    away = False

    async def read_events(self, *args: Any, **kwargs: Any) -> LogSlice:
        if self.away:
            raise StoreError("no answer")
        return await super().read_events(*args, **kwargs)


async def test_a_client_that_resumes_after_an_outage_misses_nothing(
    seq: Sequencer,
) -> None:
    store = AwayStore()
    first = await create_run(store, seq)
    reader = StoredEvents(store, TENANT, ID, retry_s=0)
    assert await anext(reader) == first
    store.away = True
    [error] = await read_rest(reader)
    assert (type(error), error.sequence_number) == (e.Error, first[-1].sequence_number)
    store.away = False
    end = seq.complete()
    assert await store.finish_response(LEASE, seq.response, events=encode_chunk(end))
    assert await read_rest(await open_reader(store, error.sequence_number)) == end


# --- from the log of this process, then from the store --------------------------------------------


async def follow_local(
    store: MemoryStore, events: Sequence[Event]
) -> tuple[MemoryEventLog, EventBatches]:
    log = MemoryEventLog()
    await log.create(ID, "t")
    await log.append(ID, events)
    return log, FollowedEvents(await log.open(ID), store, TENANT, ID)


async def test_a_reader_continues_in_the_store_when_the_local_log_breaks_off(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    log, reader = await follow_local(store, first)
    assert await anext(reader) == first
    waiting = asyncio.ensure_future(read_rest(reader))
    await run_loop()
    await log.abandon(ID)
    said = await append(store, feed_words(seq, "a"))
    end = await finish(store, seq)
    assert await waiting == [*said, *end]


async def test_events_are_forwarded_from_the_store_when_the_local_log_breaks_off(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    log, reader = await follow_local(store, first[:1])
    written: list[Event] = []
    forwarding = asyncio.ensure_future(reader.forward(written.extend))
    await run_loop()
    await log.append(ID, first[1:])
    await run_loop()
    assert written == first
    await log.abandon(ID)
    said = await append(store, feed_words(seq, "a"))
    end = await finish(store, seq)
    await forwarding
    assert written == [*first, *said, *end]


async def test_a_reader_that_only_misses_the_end_gets_it_from_the_store(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    log, _ = await follow_local(store, first)
    local = await log.open(ID, after=1)
    reader = FollowedEvents(local, store, TENANT, ID, after=1)
    end = await finish(store, seq)
    await log.abandon(ID)
    assert await read_rest(reader) == end


async def test_a_reader_of_a_complete_local_log_does_not_use_the_store(seq: Sequencer) -> None:
    events = [*seq.open(), *seq.start(), *seq.complete()]
    _, reader = await follow_local(MemoryStore(), events)
    assert await read_rest(reader) == events


async def test_nothing_follows_the_end_of_a_log_that_only_this_process_has(
    store: MemoryStore, seq: Sequencer
) -> None:
    log, _ = await follow_local(store, await create_run(store, seq, durable=False))
    end = seq.complete()
    await store.finish_response(LEASE, seq.response)
    await log.append(ID, end)
    reader = await FollowResponse(log, store)(TENANT, ID, after=end[-1].sequence_number)
    assert await read_rest(reader) == []


async def test_a_reader_gets_an_error_if_a_lost_run_has_no_log_in_the_store(
    store: MemoryStore, seq: Sequencer
) -> None:
    first = await create_run(store, seq, durable=False)
    log, reader = await follow_local(store, first)
    await log.abandon(ID)
    events = await read_rest(reader)
    assert events[:-1] == first
    assert events[-1].code == "stream_unavailable"  # type: ignore[attr-defined]


async def test_any_server_can_follow_a_run_whose_log_is_in_the_store(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    said = await append(store, feed_words(seq, "a"))
    reader = await FollowResponse(MemoryEventLog(), store)(TENANT, ID, after=0)
    assert numbers([*await anext(reader), *await anext(reader)]) == [1, *numbers(said)]


async def test_another_tenants_run_is_not_found(store: MemoryStore, first: list[Event]) -> None:
    log, _ = await follow_local(store, first)
    with pytest.raises(NotFound):
        await FollowResponse(log, store)("another", ID)


async def test_a_response_whose_log_is_gone_can_only_be_retrieved(
    store: MemoryStore, seq: Sequencer
) -> None:
    await create_run(store, seq, durable=False)
    with pytest.raises(RequestError, match="can no longer be streamed"):
        await FollowResponse(MemoryEventLog(), store)(TENANT, ID)
