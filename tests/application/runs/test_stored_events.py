"""Readers of a log that is in the store: the same events, from any server, or a word why not."""

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
    begun,
    numbers,
    rest,
    sequencer,
    several_turns,
    words,
)

from antiphon.adapters.stores.memory import MemoryStore
from antiphon.adapters.stores.memory_event_log import MemoryEventLog
from antiphon.application.ports import EventBatches, EventChunk, LogSlice
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.runs.event_chunks import encode_chunk
from antiphon.application.runs.stored_events import MAX_BATCH, FollowedEvents, StoredEvents, log_of
from antiphon.domain import events as e
from antiphon.domain.errors import CorruptLog, NotFound, RequestError, StoreError
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
    return await begun(store, seq)


async def wrote(store: MemoryStore, events: Sequence[Event]) -> Sequence[Event]:
    assert await store.append(LEASE, encode_chunk(events))
    return events


async def ended(store: MemoryStore, seq: Sequencer) -> list[Event]:
    end = seq.complete()
    assert await store.finish(LEASE, seq.response, events=encode_chunk(end))
    return end


async def opened(store: MemoryStore, after: int = -1) -> EventBatches:
    return await StoredEvents.open(store, TENANT, ID, after=after)


async def test_a_log_is_read_from_after_any_number(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    events = [*first, *await wrote(store, words(seq, "a", "b")), *await ended(store, seq)]
    assert await log_of(store, TENANT, ID) == events
    for after in range(-1, len(events)):
        assert await rest(await opened(store, after)) == events[after + 1 :]
    assert await rest(await opened(store, 99)) == []


async def test_a_reader_gets_what_comes_later(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    reader = await opened(store)
    assert await anext(reader) == first
    waiting = asyncio.ensure_future(anext(reader))
    await several_turns()
    assert not waiting.done()
    said = await wrote(store, words(seq, "a"))
    assert await waiting == said
    end = await ended(store, seq)
    assert await rest(reader) == end


async def test_a_cancelled_wait_loses_no_events(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    reader = await opened(store, after=1)
    waiting = asyncio.ensure_future(anext(reader))
    for _ in range(5):
        await several_turns()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        waiting = asyncio.ensure_future(anext(reader))
    said = await wrote(store, words(seq, "a"))
    assert await waiting == said


async def test_a_long_log_comes_in_batches(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    await wrote(store, words(seq, *"x" * (3 * MAX_BATCH)))
    await ended(store, seq)
    batches = [len(batch) async for batch in await opened(store)]
    assert max(batches) == MAX_BATCH


async def test_no_log_is_not_found(store: MemoryStore, seq: Sequencer) -> None:
    with pytest.raises(NotFound):
        await opened(store)
    await begun(store, seq, durable=False)
    with pytest.raises(NotFound):
        await opened(store)


async def test_who_reads_a_response_that_is_deleted_is_told(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    reader = await opened(store)
    await anext(reader)
    waiting = asyncio.ensure_future(rest(reader))
    await several_turns()
    await store.delete(TENANT, ID)
    [told] = await waiting
    assert isinstance(told, e.Error)
    assert (told.code, told.sequence_number) == ("response_deleted", first[-1].sequence_number)


class DamagedStore(MemoryStore):
    """Its chunks are not what was written, from the second on."""

    def __init__(self, damage: str) -> None:
        super().__init__()
        self.damage = damage

    async def append(self, lease: object, events: EventChunk) -> bool:
        return await super().append(lease, self.damaged(events))  # type: ignore[arg-type]

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
async def test_a_damaged_log_breaks_off_with_a_word_and_leaves_no_event_out(
    damage: str, seq: Sequencer
) -> None:
    store = DamagedStore(damage)
    first = await begun(store, seq)
    await wrote(store, words(seq, "a", "b"))
    events = await rest(await opened(store))
    assert events[:-1] == first
    assert isinstance(events[-1], e.Error)
    assert events[-1].code == "stream_unavailable"
    with pytest.raises(CorruptLog):
        await log_of(store, TENANT, ID)


@pytest.mark.parametrize("after", [-1, 0, 1])
async def test_a_log_without_its_end_breaks_off_with_a_word(
    after: int, store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    seq.complete()
    await store.finish(LEASE, seq.response)  # as if the last chunk were lost
    events = await rest(await opened(store, after))
    assert events[:-1] == first[after + 1 :]
    assert isinstance(events[-1], e.Error)
    assert events[-1].code == "stream_unavailable"


class AwayStore(MemoryStore):
    """Its logs cannot be read while it is away."""

    away = False

    async def events(self, *args: Any, **kwargs: Any) -> LogSlice:
        if self.away:
            raise StoreError("nobody answers")
        return await super().events(*args, **kwargs)


async def test_who_resumes_after_a_stream_broke_off_misses_nothing(
    seq: Sequencer,
) -> None:
    store = AwayStore()
    first = await begun(store, seq)
    reader = StoredEvents(store, TENANT, ID, retry_s=0)
    assert await anext(reader) == first
    store.away = True
    [told] = await rest(reader)
    assert (type(told), told.sequence_number) == (e.Error, first[-1].sequence_number)
    store.away = False
    end = seq.complete()
    assert await store.finish(LEASE, seq.response, events=encode_chunk(end))
    assert await rest(await opened(store, told.sequence_number)) == end


# --- from the log of this process, then from the store --------------------------------------------


async def followed(
    store: MemoryStore, events: Sequence[Event]
) -> tuple[MemoryEventLog, EventBatches]:
    log = MemoryEventLog()
    await log.create(ID)
    await log.append(ID, events)
    return log, FollowedEvents(await log.open(ID), store, TENANT, ID)


async def test_a_reader_goes_on_in_the_store_where_the_local_log_breaks_off(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    log, reader = await followed(store, first)
    assert await anext(reader) == first
    waiting = asyncio.ensure_future(rest(reader))
    await several_turns()
    await log.abandon(ID)
    said = await wrote(store, words(seq, "a"))
    end = await ended(store, seq)
    assert await waiting == [*said, *end]


async def test_a_reader_who_waits_for_the_end_alone_gets_it_from_the_store(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    log, _ = await followed(store, first)
    local = await log.open(ID, after=1)
    reader = FollowedEvents(local, store, TENANT, ID, after=1)
    end = await ended(store, seq)
    await log.abandon(ID)
    assert await rest(reader) == end


async def test_a_reader_of_a_whole_local_log_does_not_ask_the_store(seq: Sequencer) -> None:
    events = [*seq.open(), *seq.start(), *seq.complete()]
    _, reader = await followed(MemoryStore(), events)
    assert await rest(reader) == events


async def test_nothing_follows_the_end_of_a_log_that_only_this_process_has(
    store: MemoryStore, seq: Sequencer
) -> None:
    log, _ = await followed(store, await begun(store, seq, durable=False))
    end = seq.complete()
    await store.finish(LEASE, seq.response)
    await log.append(ID, end)
    reader = await FollowResponse(log, store)(TENANT, ID, after=end[-1].sequence_number)
    assert await rest(reader) == []


async def test_a_reader_is_told_when_a_lost_run_has_no_log_in_the_store(
    store: MemoryStore, seq: Sequencer
) -> None:
    first = await begun(store, seq, durable=False)
    log, reader = await followed(store, first)
    await log.abandon(ID)
    events = await rest(reader)
    assert events[:-1] == first
    assert events[-1].code == "stream_unavailable"  # type: ignore[attr-defined]


async def test_any_server_follows_a_run_whose_log_is_in_the_store(
    store: MemoryStore, seq: Sequencer, first: list[Event]
) -> None:
    said = await wrote(store, words(seq, "a"))
    reader = await FollowResponse(MemoryEventLog(), store)(TENANT, ID, after=0)
    assert numbers([*await anext(reader), *await anext(reader)]) == [1, *numbers(said)]


async def test_another_tenants_run_is_not_found(store: MemoryStore, first: list[Event]) -> None:
    log, _ = await followed(store, first)
    with pytest.raises(NotFound):
        await FollowResponse(log, store)("another", ID)


async def test_a_response_whose_log_is_gone_can_only_be_retrieved(
    store: MemoryStore, seq: Sequencer
) -> None:
    await begun(store, seq, durable=False)
    with pytest.raises(RequestError, match="can no longer be streamed"):
        await FollowResponse(MemoryEventLog(), store)(TENANT, ID)
