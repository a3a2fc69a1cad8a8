"""What a run wrote is what readers see, whatever the store does meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from tests.application.event_log_fixtures import (
    ID,
    LEASE,
    TENANT,
    FailingStore,
    begun,
    numbers,
    rest,
    sequencer,
    several_turns,
    words,
)

from antiphon.adapters.stores.memory_event_log import MemoryEventLog
from antiphon.application.ports import WebhookDelivery
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.runs import journal as j
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal
from antiphon.application.runs.stored_events import log_of
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.errors import LeaseLost, NotFound, StoreError
from antiphon.domain.events import Event
from antiphon.domain.response import Failure
from antiphon.domain.sequencer import Sequencer

NEVER = 3600.0
"""Seconds between writes: only the first write, and the end's, come by themselves."""

FAILURE = Failure(code="server_error", message="not stored")


class Served:
    """A run that was created, with its log here and in the store."""

    def __init__(self) -> None:
        self.store = FailingStore()
        self.log = MemoryEventLog()
        self.seq: Sequencer = sequencer()
        self.events: list[Event] = []

    async def begin(self, *, durable: bool = True) -> None:
        await self.log.create(ID)
        self.events += await begun(self.store, self.seq, durable=durable)
        await self.log.append(ID, self.events)

    def durable(self, *, retry_s: float = 5, write_every_s: float = 0) -> DurableJournal:
        return DurableJournal(
            self.store, self.log, LEASE, retry_s=retry_s, write_every_s=write_every_s
        )

    def say(self, *texts: str) -> list[Event]:
        said = words(self.seq, *texts)
        self.events += said
        return said

    async def kept(self) -> list[Event]:
        return await log_of(self.store, TENANT, ID)

    async def shown(self) -> list[Event]:
        return await rest(await self.log.open(ID))


@pytest.fixture
async def served() -> Served:
    return Served()


@pytest.fixture
async def run(served: Served) -> Served:
    await served.begin()
    return served


# --- durable --------------------------------------------------------------------------------------


async def test_anything_but_deltas_is_in_the_store_when_append_returns(run: Served) -> None:
    journal = run.durable()
    await journal.append(run.say("Let me look."))
    await journal.append(called := run.seq.feed(d.CallStart("search")))
    assert await run.kept() == [*run.events, *called]


async def test_deltas_that_come_quickly_share_a_write(run: Served) -> None:
    journal = run.durable(write_every_s=NEVER)
    await journal.append(run.say("a"))
    for word in "bcdef":
        await journal.append(run.say(word))
    assert run.store.writes == 1
    end = run.seq.complete()
    assert await journal.finish(run.seq.response, end)
    assert run.store.writes == 2
    assert await run.kept() == await run.shown() == [*run.events, *end]


async def test_deltas_that_wait_are_written_when_it_is_time(run: Served) -> None:
    journal = run.durable(write_every_s=0.01)
    reader = await run.log.open(ID, after=1)
    await journal.append(run.say("a"))
    await journal.append(said := run.say("b"))
    seen: list[Event] = []
    async with asyncio.timeout(30):
        while not seen or seen[-1] != said[-1]:
            seen += await anext(reader)
    assert await run.kept() == run.events


async def test_nothing_is_shown_before_it_is_in_the_store(run: Served) -> None:
    journal = run.durable()
    run.store.gate.clear()
    reader = await run.log.open(ID, after=1)
    waiting = asyncio.ensure_future(anext(reader))
    writing = asyncio.ensure_future(journal.append(run.say("a")))
    await several_turns()
    assert not waiting.done()
    assert not writing.done(), "the item that it opens is no delta"
    run.store.gate.set()
    await writing
    assert numbers(await waiting) == [2, 3, 4]


async def test_the_end_is_shown_once_it_is_kept(run: Served) -> None:
    journal = run.durable()
    run.store.gate.clear()
    end = run.seq.complete()
    reader = await run.log.open(ID, after=1)
    waiting = asyncio.ensure_future(anext(reader))
    finishing = asyncio.ensure_future(journal.finish(run.seq.response, end))
    await several_turns()
    assert not waiting.done()
    run.store.gate.set()
    assert await finishing
    assert await waiting == end
    assert (await run.store.get(TENANT, ID)).status == "completed"


async def test_the_end_brings_its_notices(run: Served) -> None:
    delivery = WebhookDelivery(id="evt_1", tenant=TENANT, endpoint="hook", body=b"{}")
    await run.durable().finish(run.seq.response, run.seq.complete(), [delivery])
    assert [kept.id for kept in await run.store.claim_due(limit=9, claim_s=9)] == ["evt_1"]


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("failing", range(1, 8))
async def test_a_write_that_fails_is_done_again_with_the_same_numbers(
    run: Served, failing: int, heard: bool
) -> None:
    run.store.fails = lambda write: write == failing
    run.store.heard = heard
    journal = run.durable()
    await journal.append(run.say("a"))
    await journal.append(run.seq.feed(d.CallStart("f", "call_1")))
    await journal.append(run.seq.feed(d.ArgumentsDelta("{}")))
    await journal.append(run.seq.feed(d.ItemEnd()))
    await journal.append(words(run.seq, "b", "c"))
    end = run.seq.complete()
    assert await journal.finish(run.seq.response, end)
    kept = await run.kept()
    assert numbers(kept) == list(range(len(kept)))
    assert kept == await run.shown()
    assert kept[-1] == end[-1]
    assert await run.store.get(TENANT, ID) == run.seq.response


async def test_a_store_that_stays_away_is_told_to_the_run_which_may_end_otherwise(
    run: Served,
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
    assert await run.kept() == await run.shown() == [*run.events, *end]


@pytest.mark.parametrize("heard", [False, True])
async def test_what_a_failing_store_may_have_heard_is_not_written_twice(
    run: Served, heard: bool
) -> None:
    journal = run.durable(retry_s=0)
    run.store.fails, run.store.heard = lambda _: True, heard
    with pytest.raises(StoreError):
        await journal.append(run.say("a"))
    run.store.fails = lambda _: False
    end = run.seq.fail(FAILURE)
    assert await journal.finish(run.seq.response, end)
    assert await run.kept() == await run.shown() == [*run.events, *end]


async def test_an_end_that_was_not_kept_can_be_revoked(run: Served) -> None:
    journal = run.durable(retry_s=0)
    await journal.append(run.say("a"))
    run.store.fails = lambda _: True
    end = run.seq.complete()
    with pytest.raises(StoreError):
        await journal.finish(run.seq.response, end)
    run.store.fails = lambda _: False
    instead = run.seq.revoke(end, FAILURE)
    assert await journal.finish(run.seq.response, instead)
    assert await run.kept() == await run.shown() == [*run.events, *instead]


async def test_an_end_that_was_kept_unheard_cannot_be_revoked(run: Served) -> None:
    journal = run.durable(retry_s=0)
    reader = await FollowResponse(run.log, run.store)(TENANT, ID)
    run.store.fails, run.store.heard = lambda _: True, True
    end = run.seq.complete()
    with pytest.raises(StoreError):
        await journal.finish(run.seq.response, end)
    run.store.fails = lambda _: False
    assert not await journal.finish(run.seq.response, run.seq.revoke(end, FAILURE))
    assert await rest(reader) == [*run.events, *end], "readers are told what the store has"


async def test_a_run_that_was_taken_over_writes_nothing_more(run: Served) -> None:
    journal = run.durable()
    reader = await run.log.open(ID)
    await run.store.take_over("srv_2", TENANT, ID)
    with pytest.raises(LeaseLost):
        await journal.append(words(run.seq, "a"))
    with pytest.raises(LeaseLost):
        await journal.append(words(run.seq, "b"))
    assert not await journal.finish(run.seq.response, run.seq.complete())
    assert await run.kept() == await rest(reader) == run.events
    with pytest.raises(NotFound):
        await run.log.open(ID)


async def test_a_run_that_is_lost_at_its_end_shows_no_end(run: Served) -> None:
    journal = run.durable()
    reader = await run.log.open(ID)
    await run.store.delete(TENANT, ID)
    assert not await journal.finish(run.seq.response, run.seq.complete())
    assert await rest(reader) == run.events


async def test_a_run_that_was_given_up_breaks_off_here(run: Served) -> None:
    journal = run.durable(retry_s=60)
    reader = await run.log.open(ID)
    run.store.fails = lambda _: True
    writing = asyncio.ensure_future(journal.append(words(run.seq, "a")))
    await several_turns()
    await journal.give_up(())
    assert await rest(reader) == run.events
    with pytest.raises(LeaseLost):
        await writing


async def test_a_cancelled_append_loses_no_events(run: Served) -> None:
    journal = run.durable()
    run.store.gate.clear()
    writing = asyncio.ensure_future(journal.append(run.say("a")))
    await several_turns()
    writing.cancel()
    await several_turns()
    assert writing.cancelled()
    run.store.gate.set()
    end = run.seq.cancel()
    assert await journal.finish(run.seq.response, end)
    assert await run.kept() == await run.shown() == [*run.events, *end]


@pytest.mark.parametrize(
    "texts", [["x"] * (j.MAX_EVENTS + 1), ["x" * (j.MAX_BYTES + 1)]], ids=["events", "bytes"]
)
async def test_a_run_waits_when_much_waits_for_a_slow_store(run: Served, texts: list[str]) -> None:
    journal = run.durable()
    await journal.append(run.say("a"))
    run.store.gate.clear()
    await journal.append(run.say("b"))  # this one is under way
    await several_turns()
    waiting = asyncio.ensure_future(journal.append(run.say(*texts)))
    await several_turns()
    assert not waiting.done()
    run.store.gate.set()
    await waiting
    end = run.seq.complete()
    assert await journal.finish(run.seq.response, end)
    assert await run.kept() == [*run.events, *end]


# --- in the foreground ----------------------------------------------------------------------------


async def test_in_the_foreground_events_are_shown_and_their_log_is_not_kept(served: Served) -> None:
    await served.begin(durable=False)
    journal = ForegroundJournal(served.log, LEASE, served.store)
    await journal.append(served.say("a"))
    assert served.store.writes == 0
    end = served.seq.complete()
    assert await journal.finish(served.seq.response, end)
    assert await served.shown() == [*served.events, *end]
    assert (await served.store.get(TENANT, ID)).status == "completed"


async def test_in_the_foreground_an_end_is_shown_once_it_is_kept(served: Served) -> None:
    await served.begin(durable=False)
    journal = ForegroundJournal(served.log, LEASE, served.store, retry_s=0)
    served.store.fails = lambda _: True
    end = served.seq.complete()
    with pytest.raises(StoreError):
        await journal.finish(served.seq.response, end)
    instead = served.seq.revoke(end, FAILURE)
    reader = await served.log.open(ID)
    await journal.give_up(instead)
    assert await rest(reader) == [*served.events, *instead]
    with pytest.raises(NotFound):
        await served.log.open(ID)


async def test_in_the_foreground_an_end_that_was_kept_unheard_is_shown(served: Served) -> None:
    await served.begin(durable=False)
    served.store.fails, served.store.heard = lambda write: write == 1, True
    journal = ForegroundJournal(served.log, LEASE, served.store)
    end = served.seq.complete()
    assert await journal.finish(served.seq.response, end)
    assert await served.shown() == [*served.events, *end]


async def test_in_the_foreground_an_end_is_not_shown_if_the_response_has_another(
    served: Served,
) -> None:
    await served.begin(durable=False)
    journal = ForegroundJournal(served.log, LEASE, served.store)
    await served.store.delete(TENANT, ID)
    end = served.seq.complete()
    assert not await journal.finish(served.seq.response, end)
    reader = await served.log.open(ID)
    await journal.give_up(served.seq.revoke(end, FAILURE))
    assert type((await rest(reader))[-1]) is e.Failed


async def test_what_is_not_stored_is_only_shown(served: Served) -> None:
    await served.log.create(ID)
    journal = ForegroundJournal(served.log, LEASE)
    events = [*served.seq.open(), *served.seq.start()]
    await journal.append(events)
    end = served.seq.complete()
    assert await journal.finish(served.seq.response, end)
    assert await served.shown() == [*events, *end]
