"""Readers see what a run wrote, whether the store is slow, fails or loses answers."""

from __future__ import annotations

import asyncio

import pytest
from tests.application.event_log_fixtures import (
    ID,
    LEASE,
    TENANT,
    FailingStore,
    create_run,
    feed_words,
    numbers,
    read_rest,
    run_loop,
    sequencer,
)

from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.application.ports import WebhookDelivery
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.runs import journal as j
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal
from antiphon.application.runs.stored_events import log_of
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.errors import LeaseLost, NotFound, StoreError
from antiphon.domain.events import Event
from antiphon.domain.responses.response import Failure
from antiphon.domain.sequencer import Sequencer

NEVER = 3600.0
"""Seconds between writes: only the first write and the end's write happen."""

FAILURE = Failure(code="server_error", message="not stored")


class LoggedRun:
    """A run with its log in this process and in the store."""

    def __init__(self) -> None:
        self.store = FailingStore()
        self.log = MemoryEventLog()
        self.seq: Sequencer = sequencer()
        self.events: list[Event] = []

    async def create(self, *, durable: bool = True) -> None:
        await self.log.create(ID, "t")
        self.events += await create_run(self.store, self.seq, durable=durable)
        await self.log.append(ID, self.events)

    def durable(self, *, retry_s: float = 5, write_every_s: float = 0) -> DurableJournal:
        return DurableJournal(
            self.store, self.log, LEASE, retry_s=retry_s, write_every_s=write_every_s
        )

    def say(self, *texts: str) -> list[Event]:
        said = feed_words(self.seq, *texts)
        self.events += said
        return said

    async def stored_events(self) -> list[Event]:
        return await log_of(self.store, TENANT, ID)

    async def local_events(self) -> list[Event]:
        return await read_rest(await self.log.open(ID))


@pytest.fixture
async def new_run() -> LoggedRun:
    return LoggedRun()


@pytest.fixture
async def run(new_run: LoggedRun) -> LoggedRun:
    await new_run.create()
    return new_run


# --- durable --------------------------------------------------------------------------------------


async def test_anything_but_deltas_is_in_the_store_when_append_returns(run: LoggedRun) -> None:
    journal = run.durable()
    await journal.append(run.say("Let me look."))
    await journal.append(called := run.seq.feed(d.CallStart("search")))
    assert await run.stored_events() == [*run.events, *called]


async def test_deltas_that_come_quickly_share_a_write(run: LoggedRun) -> None:
    journal = run.durable(write_every_s=NEVER)
    await journal.append(run.say("a"))
    for word in "bcdef":
        await journal.append(run.say(word))
    assert run.store.writes == 1
    end = run.seq.complete()
    assert await journal.finish(run.seq.response, end)
    assert run.store.writes == 2
    assert await run.stored_events() == await run.local_events() == [*run.events, *end]


async def test_buffered_deltas_are_written_when_the_interval_has_passed(run: LoggedRun) -> None:
    journal = run.durable(write_every_s=0.01)
    reader = await run.log.open(ID, after=1)
    await journal.append(run.say("a"))
    await journal.append(said := run.say("b"))
    seen: list[Event] = []
    async with asyncio.timeout(30):
        while not seen or seen[-1] != said[-1]:
            seen += await anext(reader)
    assert await run.stored_events() == run.events


async def test_readers_see_no_event_before_it_is_in_the_store(run: LoggedRun) -> None:
    journal = run.durable()
    run.store.gate.clear()
    reader = await run.log.open(ID, after=1)
    waiting = asyncio.ensure_future(anext(reader))
    writing = asyncio.ensure_future(journal.append(run.say("a")))
    await run_loop()
    assert not waiting.done()
    assert not writing.done(), "the event that opens the item is not a delta"
    run.store.gate.set()
    await writing
    assert numbers(await waiting) == [2, 3, 4]


async def test_readers_see_the_end_after_it_is_stored(run: LoggedRun) -> None:
    journal = run.durable()
    run.store.gate.clear()
    end = run.seq.complete()
    reader = await run.log.open(ID, after=1)
    waiting = asyncio.ensure_future(anext(reader))
    finishing = asyncio.ensure_future(journal.finish(run.seq.response, end))
    await run_loop()
    assert not waiting.done()
    run.store.gate.set()
    assert await finishing
    assert await waiting == end
    assert (await run.store.get_response(TENANT, ID)).status == "completed"


async def test_the_webhook_deliveries_are_stored_with_the_end(run: LoggedRun) -> None:
    delivery = WebhookDelivery(id="evt_1", tenant=TENANT, endpoint="hook", body=b"{}")
    await run.durable().finish(run.seq.response, run.seq.complete(), [delivery])
    assert [kept.id for kept in await run.store.claim_due_deliveries(limit=9, claim_s=9)] == [
        "evt_1"
    ]


@pytest.mark.parametrize("lost_answer", [False, True])
@pytest.mark.parametrize("failing", range(1, 8))
async def test_a_failed_write_is_retried_with_the_same_numbers(
    run: LoggedRun, failing: int, lost_answer: bool
) -> None:
    run.store.fails = lambda write: write == failing
    run.store.lost_answer = lost_answer
    journal = run.durable()
    await journal.append(run.say("a"))
    await journal.append(run.seq.feed(d.CallStart("f", "call_1")))
    await journal.append(run.seq.feed(d.ArgumentsDelta("{}")))
    await journal.append(run.seq.feed(d.ItemEnd()))
    await journal.append(feed_words(run.seq, "b", "c"))
    end = run.seq.complete()
    assert await journal.finish(run.seq.response, end)
    kept = await run.stored_events()
    assert numbers(kept) == list(range(len(kept)))
    assert kept == await run.local_events()
    assert kept[-1] == end[-1]
    assert await run.store.get_response(TENANT, ID) == run.seq.response


async def test_append_raises_a_long_outage_and_the_run_may_have_another_end(
    run: LoggedRun,
) -> None:
    journal = run.durable(retry_s=0)
    run.store.fails = lambda _: True
    with pytest.raises(StoreError, match="disk is full"):
        await journal.append(run.say("a"))
    with pytest.raises(StoreError):
        await journal.append(run.say("b"))
    run.store.fails = lambda _: False
    end = run.seq.fail(FAILURE)
    assert await journal.finish(run.seq.response, end)
    assert await run.stored_events() == await run.local_events() == [*run.events, *end]


@pytest.mark.parametrize("lost_answer", [False, True])
async def test_events_of_a_failed_write_are_not_stored_twice(
    run: LoggedRun, lost_answer: bool
) -> None:
    journal = run.durable(retry_s=0)
    run.store.fails, run.store.lost_answer = lambda _: True, lost_answer
    with pytest.raises(StoreError):
        await journal.append(run.say("a"))
    run.store.fails = lambda _: False
    end = run.seq.fail(FAILURE)
    assert await journal.finish(run.seq.response, end)
    assert await run.stored_events() == await run.local_events() == [*run.events, *end]


async def test_an_end_that_was_not_stored_can_be_replaced(run: LoggedRun) -> None:
    journal = run.durable(retry_s=0)
    await journal.append(run.say("a"))
    run.store.fails = lambda _: True
    end = run.seq.complete()
    with pytest.raises(StoreError):
        await journal.finish(run.seq.response, end)
    run.store.fails = lambda _: False
    instead = run.seq.revoke(end, FAILURE)
    assert await journal.finish(run.seq.response, instead)
    assert await run.stored_events() == await run.local_events() == [*run.events, *instead]


async def test_a_stored_end_with_a_lost_answer_cannot_be_replaced(run: LoggedRun) -> None:
    journal = run.durable(retry_s=0)
    reader = await FollowResponse(run.log, run.store)(TENANT, ID)
    run.store.fails, run.store.lost_answer = lambda _: True, True
    end = run.seq.complete()
    with pytest.raises(StoreError):
        await journal.finish(run.seq.response, end)
    run.store.fails = lambda _: False
    assert not await journal.finish(run.seq.response, run.seq.revoke(end, FAILURE))
    assert await read_rest(reader) == [*run.events, *end], "readers see what the store has"


async def test_a_run_that_was_taken_over_writes_no_more_events(run: LoggedRun) -> None:
    journal = run.durable()
    reader = await run.log.open(ID)
    await run.store.take_over_run("srv_2", TENANT, ID)
    with pytest.raises(LeaseLost):
        await journal.append(feed_words(run.seq, "a"))
    with pytest.raises(LeaseLost):
        await journal.append(feed_words(run.seq, "b"))
    assert not await journal.finish(run.seq.response, run.seq.complete())
    assert await run.stored_events() == await read_rest(reader) == run.events
    with pytest.raises(NotFound):
        await run.log.open(ID)


async def test_a_run_that_lost_its_lease_shows_no_end(run: LoggedRun) -> None:
    journal = run.durable()
    reader = await run.log.open(ID)
    await run.store.delete_response(TENANT, ID)
    assert not await journal.finish(run.seq.response, run.seq.complete())
    assert await read_rest(reader) == run.events


async def test_readers_of_a_run_that_was_given_up_stop_here(run: LoggedRun) -> None:
    journal = run.durable(retry_s=60)
    reader = await run.log.open(ID)
    run.store.fails = lambda _: True
    writing = asyncio.ensure_future(journal.append(feed_words(run.seq, "a")))
    await run_loop()
    await journal.give_up(())
    assert await read_rest(reader) == run.events
    with pytest.raises(LeaseLost):
        await writing


async def test_a_cancelled_append_loses_no_events(run: LoggedRun) -> None:
    journal = run.durable()
    run.store.gate.clear()
    writing = asyncio.ensure_future(journal.append(run.say("a")))
    await run_loop()
    writing.cancel()
    await run_loop()
    assert writing.cancelled()
    run.store.gate.set()
    end = run.seq.cancel()
    assert await journal.finish(run.seq.response, end)
    assert await run.stored_events() == await run.local_events() == [*run.events, *end]


@pytest.mark.parametrize(
    "texts", [["x"] * (j.MAX_EVENTS + 1), ["x" * (j.MAX_BYTES + 1)]], ids=["events", "bytes"]
)
async def test_a_run_waits_when_the_buffer_for_a_slow_store_is_full(
    run: LoggedRun, texts: list[str]
) -> None:
    journal = run.durable()
    await journal.append(run.say("a"))
    run.store.gate.clear()
    await journal.append(run.say("b"))  # its write has started
    await run_loop()
    waiting = asyncio.ensure_future(journal.append(run.say(*texts)))
    await run_loop()
    assert not waiting.done()
    run.store.gate.set()
    await waiting
    end = run.seq.complete()
    assert await journal.finish(run.seq.response, end)
    assert await run.stored_events() == [*run.events, *end]


# --- in the foreground ----------------------------------------------------------------------------


async def test_in_the_foreground_readers_see_events_that_are_not_stored(new_run: LoggedRun) -> None:
    await new_run.create(durable=False)
    journal = ForegroundJournal(new_run.log, LEASE, new_run.store)
    await journal.append(new_run.say("a"))
    assert new_run.store.writes == 0
    end = new_run.seq.complete()
    assert await journal.finish(new_run.seq.response, end)
    assert await new_run.local_events() == [*new_run.events, *end]
    assert (await new_run.store.get_response(TENANT, ID)).status == "completed"


async def test_in_the_foreground_only_current_readers_see_an_unstored_end(
    new_run: LoggedRun,
) -> None:
    await new_run.create(durable=False)
    journal = ForegroundJournal(new_run.log, LEASE, new_run.store, retry_s=0)
    new_run.store.fails = lambda _: True
    end = new_run.seq.complete()
    with pytest.raises(StoreError):
        await journal.finish(new_run.seq.response, end)
    instead = new_run.seq.revoke(end, FAILURE)
    reader = await new_run.log.open(ID)
    await journal.give_up(instead)
    assert await read_rest(reader) == [*new_run.events, *instead]
    with pytest.raises(NotFound):
        await new_run.log.open(ID)


async def test_in_the_foreground_an_end_with_a_lost_answer_is_shown(
    new_run: LoggedRun,
) -> None:
    await new_run.create(durable=False)
    new_run.store.fails, new_run.store.lost_answer = lambda write: write == 1, True
    journal = ForegroundJournal(new_run.log, LEASE, new_run.store)
    end = new_run.seq.complete()
    assert await journal.finish(new_run.seq.response, end)
    assert await new_run.local_events() == [*new_run.events, *end]


async def test_in_the_foreground_the_end_of_a_deleted_response_is_not_shown(
    new_run: LoggedRun,
) -> None:
    await new_run.create(durable=False)
    journal = ForegroundJournal(new_run.log, LEASE, new_run.store)
    await new_run.store.delete_response(TENANT, ID)
    end = new_run.seq.complete()
    assert not await journal.finish(new_run.seq.response, end)
    reader = await new_run.log.open(ID)
    await journal.give_up(new_run.seq.revoke(end, FAILURE))
    assert type((await read_rest(reader))[-1]) is e.Failed


async def test_an_unstored_response_is_only_shown(new_run: LoggedRun) -> None:
    await new_run.log.create(ID, "t")
    journal = ForegroundJournal(new_run.log, LEASE)
    events = [*new_run.seq.open(), *new_run.seq.start()]
    await journal.append(events)
    end = new_run.seq.complete()
    assert await journal.finish(new_run.seq.response, end)
    assert await new_run.local_events() == [*events, *end]
