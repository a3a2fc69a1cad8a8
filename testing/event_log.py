"""What every EventLog must do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antiphon.application.ports import EventBatches, EventLog
from antiphon.domain import events as e
from antiphon.domain.errors import NotFound
from antiphon.domain.response import Response

ID = "resp_1"


def text(number: int) -> e.Event:
    return e.TextDelta(
        sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=f"{number} "
    )


def end(number: int) -> e.Event:
    done = Response(id=ID, created_at=0, model="m", status="completed")
    return e.Completed(sequence_number=number, response=done)


def whole(count: int) -> list[e.Event]:
    """A run of `count` events, the last one terminal."""
    return [*map(text, range(count - 1)), end(count - 1)]


def numbers(events: Sequence[e.Event]) -> list[int]:
    return [event.sequence_number for event in events]


async def rest(batches: EventBatches) -> list[e.Event]:
    return [event async for batch in batches for event in batch]


async def several_turns() -> None:
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
        await log.create(ID)
        events = whole(700)
        await log.append(ID, events[:1])
        await log.append(ID, events[1:650])
        await log.append(ID, events[650:])
        assert await rest(await log.open(ID)) == events

    async def test_what_is_ready_comes_in_one_batch(self, log: EventLog) -> None:
        await log.create(ID)
        for number in range(5):
            await log.append(ID, [text(number)])
        batches = await log.open(ID)
        assert numbers(await anext(batches)) == [0, 1, 2, 3, 4]
        await batches.aclose()

    async def test_a_reader_at_the_end_waits_for_more(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, [text(0)])
        batches = await log.open(ID)
        assert numbers(await anext(batches)) == [0]
        following = asyncio.create_task(anext(batches))
        await several_turns()
        assert not following.done()
        await log.append(ID, [text(1), text(2)])
        assert numbers(await following) == [1, 2]
        await batches.aclose()

    async def test_a_terminal_event_ends_every_reader(self, log: EventLog) -> None:
        await log.create(ID)
        early = asyncio.create_task(rest(await log.open(ID)))
        await several_turns()
        await log.append(ID, whole(3))
        late = await log.open(ID)
        assert numbers(await early) == [0, 1, 2]
        assert numbers(await rest(late)) == [0, 1, 2]
        with pytest.raises(StopAsyncIteration):
            await anext(late)

    async def test_any_number_can_be_resumed_after_once_the_run_is_over(
        self, log: EventLog
    ) -> None:
        await log.create(ID)
        await log.append(ID, whole(20))
        for after in range(-1, 25):
            found = await rest(await log.open(ID, after=after))
            assert numbers(found) == list(range(after + 1, 20))

    async def test_any_number_can_be_resumed_after_while_the_run_goes_on(
        self, log: EventLog
    ) -> None:
        await log.create(ID)
        events = whole(20)
        await log.append(ID, events[:10])
        readers = {
            after: asyncio.create_task(rest(await log.open(ID, after=after)))
            for after in range(-1, 25)
        }
        await several_turns()
        for event in events[10:]:
            await log.append(ID, [event])
        for after, reader in readers.items():
            assert numbers(await reader) == list(range(after + 1, 20))

    async def test_readers_of_different_speed_do_not_disturb_each_other(
        self, log: EventLog
    ) -> None:
        await log.create(ID)
        slow = await log.open(ID)
        fast = asyncio.create_task(rest(await log.open(ID)))
        events = whole(50)
        await log.append(ID, events[:1])
        first = list(await anext(slow))
        for event in events[1:]:
            await log.append(ID, [event])
            await asyncio.sleep(0)
        assert await fast == events
        assert first + await rest(slow) == events

    async def test_a_cancelled_reader_does_not_disturb_the_others(self, log: EventLog) -> None:
        await log.create(ID)
        leaving, staying = [asyncio.create_task(rest(await log.open(ID))) for _ in range(2)]
        await several_turns()
        await log.append(ID, [text(0)])
        await several_turns()
        leaving.cancel()
        await log.append(ID, [text(1)])
        await asyncio.wait([leaving])
        await log.append(ID, [end(2)])
        assert leaving.cancelled()
        assert numbers(await staying) == [0, 1, 2]

    async def test_a_closed_reader_gives_nothing_more(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, [text(0)])
        batches = await log.open(ID)
        await batches.aclose()
        await log.append(ID, [end(1)])
        with pytest.raises(StopAsyncIteration):
            await anext(batches)

    async def test_a_long_replay_lets_others_have_their_turn(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, whole(20_000))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        assert len(await rest(await log.open(ID))) == 20_000
        other.cancel()
        assert turns >= 50

    async def test_an_unknown_log_cannot_be_opened(self, log: EventLog) -> None:
        with pytest.raises(NotFound):
            await log.open("resp_unknown")

    async def test_logs_are_independent(self, log: EventLog) -> None:
        await log.create(ID)
        await log.create("resp_2")
        await log.append(ID, whole(2))
        await log.append("resp_2", whole(3))
        assert numbers(await rest(await log.open(ID))) == [0, 1]
        assert numbers(await rest(await log.open("resp_2"))) == [0, 1, 2]

    async def test_a_dropped_log_cannot_be_opened(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, whole(2))
        await log.drop(ID)
        with pytest.raises(NotFound):
            await log.open(ID)

    async def test_a_log_can_be_dropped_twice_and_written_in_vain(self, log: EventLog) -> None:
        await log.create(ID)
        await log.drop(ID)
        await log.drop(ID)
        await log.append(ID, whole(2))
        with pytest.raises(NotFound):
            await log.open(ID)

    async def test_who_reads_a_dropped_log_reads_it_to_its_end(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, [text(0)])
        waiting = asyncio.create_task(rest(await log.open(ID, after=0)))
        behind = await log.open(ID)
        await several_turns()
        await log.drop(ID)
        await log.append(ID, [text(1)])
        await several_turns()
        await log.append(ID, [end(2)])
        assert numbers(await waiting) == [1, 2]
        assert numbers(await rest(behind)) == [0, 1, 2]

    async def test_who_reads_a_log_that_breaks_off_gets_what_it_has(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, [text(0), text(1)])
        waiting = asyncio.create_task(rest(await log.open(ID)))
        behind = await log.open(ID, after=0)
        await several_turns()
        await log.abandon(ID)
        await log.append(ID, [end(2)])
        assert numbers(await waiting) == [0, 1]
        assert numbers(await rest(behind)) == [1]

    async def test_a_log_that_broke_off_cannot_be_opened(self, log: EventLog) -> None:
        await log.create(ID)
        await log.abandon(ID)
        await log.abandon(ID)
        with pytest.raises(NotFound):
            await log.open(ID)

    async def test_a_dropped_log_can_break_off(self, log: EventLog) -> None:
        await log.create(ID)
        reading = asyncio.create_task(rest(await log.open(ID)))
        await several_turns()
        await log.append(ID, [text(0)])
        await log.drop(ID)
        await log.abandon(ID)
        await log.append(ID, [end(1)])
        assert numbers(await reading) == [0]

    async def test_a_log_that_has_its_end_does_not_break_off(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, whole(3))
        await log.abandon(ID)
        assert numbers(await rest(await log.open(ID))) == [0, 1, 2]

    async def test_a_log_that_broke_off_can_begin_again(self, log: EventLog) -> None:
        await log.create(ID)
        await log.append(ID, [text(0)])
        await log.abandon(ID)
        await log.create(ID)
        await log.append(ID, whole(2))
        assert numbers(await rest(await log.open(ID))) == [0, 1]
