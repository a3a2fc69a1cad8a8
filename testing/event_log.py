"""Contract tests for the port `EventLog`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from antiphon.application.ports import EventBatches, EventLog
from antiphon.domain import events as e
from antiphon.domain.errors import NotFound
from antiphon.domain.responses.response import Response
from antiphon.testing.loop_turns import count_turns

ID = "resp_1"
TENANT = "t"


def text(number: int) -> e.Event:
    return e.TextDelta(
        sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=f"{number} "
    )


def end(number: int) -> e.Event:
    done = Response(id=ID, created_at=0, model="m", status="completed")
    return e.Completed(sequence_number=number, response=done)


def run_of(count: int) -> list[e.Event]:
    """A run of `count` events, the last one terminal."""
    return [*map(text, range(count - 1)), end(count - 1)]


def numbers(events: Sequence[e.Event]) -> list[int]:
    return [event.sequence_number for event in events]


async def read_all(batches: EventBatches) -> list[e.Event]:
    return [event async for batch in batches for event in batch]


class SlowWriter:
    """Collects batches. While `is_slow`, each must be awaited until `proceed`."""

    def __init__(self) -> None:
        self.events: list[e.Event] = []
        self.is_slow = False
        self._may_go_on = asyncio.Event()

    def write(self, batch: Sequence[e.Event]) -> Awaitable[None] | None:
        if self.is_slow:
            self._may_go_on.clear()
            return self._write_slowly(batch)
        self.events += batch
        return None

    def proceed(self) -> None:
        self._may_go_on.set()

    async def _write_slowly(self, batch: Sequence[e.Event]) -> None:
        await self._may_go_on.wait()
        self.events += batch


async def yield_often() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.asyncio
class EventLogContract:
    """Subclass it where pytest collects tests.

    class TestMyLog(EventLogContract):
        @pytest.fixture
        def log(self):
            return MyLog()
    """

    @pytest.fixture
    def log(self) -> EventLog:
        raise NotImplementedError("override this fixture: return an empty log")

    async def test_a_late_reader_gets_every_event_in_order(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        events = run_of(700)
        await log.append(ID, events[:1])
        await log.append(ID, events[1:650])
        await log.append(ID, events[650:])
        assert await read_all(await log.open(ID)) == events

    async def test_what_is_ready_comes_in_one_batch(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        for number in range(5):
            await log.append(ID, [text(number)])
        batches = await log.open(ID)
        assert numbers(await anext(batches)) == [0, 1, 2, 3, 4]
        await batches.aclose()

    async def test_a_reader_at_the_end_waits_for_more(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, [text(0)])
        batches = await log.open(ID)
        assert numbers(await anext(batches)) == [0]
        following = asyncio.create_task(anext(batches))
        await yield_often()
        assert not following.done()
        await log.append(ID, [text(1), text(2)])
        assert numbers(await following) == [1, 2]
        await batches.aclose()

    async def test_a_terminal_event_ends_every_reader(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        early = asyncio.create_task(read_all(await log.open(ID)))
        await yield_often()
        await log.append(ID, run_of(3))
        late = await log.open(ID)
        assert numbers(await early) == [0, 1, 2]
        assert numbers(await read_all(late)) == [0, 1, 2]
        with pytest.raises(StopAsyncIteration):
            await anext(late)

    async def test_a_finished_run_can_be_read_after_any_number(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, run_of(20))
        for after in range(-1, 25):
            events = await read_all(await log.open(ID, after=after))
            assert numbers(events) == list(range(after + 1, 20))

    async def test_an_active_run_can_be_read_after_any_number(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        events = run_of(20)
        await log.append(ID, events[:10])
        readers = {
            after: asyncio.create_task(read_all(await log.open(ID, after=after)))
            for after in range(-1, 25)
        }
        await yield_often()
        for event in events[10:]:
            await log.append(ID, [event])
        for after, reader in readers.items():
            assert numbers(await reader) == list(range(after + 1, 20))

    async def test_a_slow_reader_does_not_hold_up_a_fast_one(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        slow = await log.open(ID)
        fast = asyncio.create_task(read_all(await log.open(ID)))
        events = run_of(50)
        await log.append(ID, events[:1])
        first = list(await anext(slow))
        for event in events[1:]:
            await log.append(ID, [event])
            await asyncio.sleep(0)
        assert await fast == events
        assert first + await read_all(slow) == events

    async def test_a_cancelled_reader_does_not_affect_the_others(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        leaving, staying = [asyncio.create_task(read_all(await log.open(ID))) for _ in range(2)]
        await yield_often()
        await log.append(ID, [text(0)])
        await yield_often()
        leaving.cancel()
        await log.append(ID, [text(1)])
        await asyncio.wait([leaving])
        await log.append(ID, [end(2)])
        assert leaving.cancelled()
        assert numbers(await staying) == [0, 1, 2]

    async def test_events_are_forwarded_as_they_come(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        events, writer = run_of(50), SlowWriter()
        await log.append(ID, events[:3])
        forwarding = asyncio.create_task((await log.open(ID)).forward(writer.write))
        await yield_often()
        for event in events[3:]:
            assert not forwarding.done()
            await log.append(ID, [event])
            await yield_often()
            assert writer.events == events[: event.sequence_number + 1]
        await forwarding

    async def test_a_write_that_must_wait_holds_later_events_back(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        events, slow, fast = run_of(6), SlowWriter(), SlowWriter()
        tasks = [
            asyncio.create_task((await log.open(ID)).forward(writer.write))
            for writer in (slow, fast)
        ]
        await log.append(ID, events[:2])
        await yield_often()
        slow.is_slow = True
        for event in events[2:5]:
            await log.append(ID, [event])
            await yield_often()
        assert (slow.events, fast.events) == (events[:2], events[:5])
        slow.is_slow = False
        slow.proceed()
        await yield_often()
        assert slow.events == events[:5]
        await log.append(ID, events[5:])
        await asyncio.gather(*tasks)
        assert slow.events == fast.events == events

    async def test_an_error_of_a_write_ends_only_its_own_reader(self, log: EventLog) -> None:
        def fail(batch: Sequence[e.Event]) -> None:
            if batch[-1].sequence_number == 1:
                raise OSError("the client is gone")

        await log.create(ID, TENANT)
        writer = SlowWriter()
        failing = asyncio.create_task((await log.open(ID)).forward(fail))
        other = asyncio.create_task((await log.open(ID)).forward(writer.write))
        for event in run_of(4):
            await log.append(ID, [event])
            await yield_often()
        with pytest.raises(OSError, match="the client is gone"):
            await failing
        await other
        assert writer.events == run_of(4)

    async def test_a_reader_goes_on_where_forwarding_was_cancelled(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        batches, writer = await log.open(ID), SlowWriter()
        forwarding = asyncio.create_task(batches.forward(writer.write))
        await log.append(ID, [text(0)])
        await yield_often()
        forwarding.cancel()
        await log.append(ID, [text(1)])
        await asyncio.wait([forwarding])
        await log.append(ID, [end(2)])
        assert numbers([*writer.events, *await read_all(batches)]) == [0, 1, 2]

    async def test_forwarding_an_abandoned_log_ends(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        writer = SlowWriter()
        forwarding = asyncio.create_task((await log.open(ID)).forward(writer.write))
        await log.append(ID, [text(0)])
        await yield_often()
        await log.abandon(ID)
        await forwarding
        assert numbers(writer.events) == [0]

    async def test_a_closed_reader_returns_nothing_more(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, [text(0)])
        batches = await log.open(ID)
        await batches.aclose()
        await log.append(ID, [end(1)])
        with pytest.raises(StopAsyncIteration):
            await anext(batches)

    async def test_a_long_replay_lets_other_tasks_run(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, run_of(20_000))
        async with count_turns() as turns:
            assert len(await read_all(await log.open(ID))) == 20_000
        assert turns.count >= 50

    async def test_an_unknown_log_cannot_be_opened(self, log: EventLog) -> None:
        with pytest.raises(NotFound):
            await log.open("resp_unknown")

    async def test_logs_are_independent(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.create("resp_2", TENANT)
        await log.append(ID, run_of(2))
        await log.append("resp_2", run_of(3))
        assert numbers(await read_all(await log.open(ID))) == [0, 1]
        assert numbers(await read_all(await log.open("resp_2"))) == [0, 1, 2]

    async def test_a_dropped_log_cannot_be_opened(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, run_of(2))
        await log.drop(ID)
        with pytest.raises(NotFound):
            await log.open(ID)

    async def test_dropping_a_log_again_or_appending_to_it_does_nothing(
        self, log: EventLog
    ) -> None:
        await log.create(ID, TENANT)
        await log.drop(ID)
        await log.drop(ID)
        await log.append(ID, run_of(2))
        with pytest.raises(NotFound):
            await log.open(ID)

    async def test_readers_of_a_dropped_log_read_it_to_its_end(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, [text(0)])
        waiting = asyncio.create_task(read_all(await log.open(ID, after=0)))
        behind = await log.open(ID)
        await yield_often()
        await log.drop(ID)
        await log.append(ID, [text(1)])
        await yield_often()
        await log.append(ID, [end(2)])
        assert numbers(await waiting) == [1, 2]
        assert numbers(await read_all(behind)) == [0, 1, 2]

    async def test_readers_of_an_abandoned_log_get_what_it_has(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, [text(0), text(1)])
        waiting = asyncio.create_task(read_all(await log.open(ID)))
        behind = await log.open(ID, after=0)
        await yield_often()
        await log.abandon(ID)
        await log.append(ID, [end(2)])
        assert numbers(await waiting) == [0, 1]
        assert numbers(await read_all(behind)) == [1]

    async def test_an_abandoned_log_cannot_be_opened(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.abandon(ID)
        await log.abandon(ID)
        with pytest.raises(NotFound):
            await log.open(ID)

    async def test_a_dropped_log_can_be_abandoned(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        reading = asyncio.create_task(read_all(await log.open(ID)))
        await yield_often()
        await log.append(ID, [text(0)])
        await log.drop(ID)
        await log.abandon(ID)
        await log.append(ID, [end(1)])
        assert numbers(await reading) == [0]

    async def test_a_log_that_has_its_end_is_not_abandoned(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, run_of(3))
        await log.abandon(ID)
        assert numbers(await read_all(await log.open(ID))) == [0, 1, 2]

    async def test_an_abandoned_log_can_be_created_again(self, log: EventLog) -> None:
        await log.create(ID, TENANT)
        await log.append(ID, [text(0)])
        await log.abandon(ID)
        await log.create(ID, TENANT)
        await log.append(ID, run_of(2))
        assert numbers(await read_all(await log.open(ID))) == [0, 1]
