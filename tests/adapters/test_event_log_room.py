"""The room of event logs: what nobody has read is bounded, and what was read makes room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.adapters.stores.memory.event_log import COUNT_EVERY, MemoryEventLog
from antiphon.application.ports import EventBatches
from antiphon.application.support.bytes_in_work import FREE_BYTES, BytesInWork
from antiphon.domain import events as e
from antiphon.domain.errors import ConcurrencyLimitExceeded, NotFound
from antiphon.testing.event_log import end, numbers, read_all, text, yield_often

MANY = 40 * COUNT_EVERY


class House:
    def __init__(self) -> None:
        self.bytes = BytesInWork(4_000_000)
        self.log = MemoryEventLog(bytes_in_work=self.bytes)

    async def run(self, name: str, count: int = MANY, *, tenant: str = "t") -> None:
        for number in range(count):
            await self.log.append(name, [text(number)])
        await self.log.append(name, [end(count)])

    @asynccontextmanager
    async def running(
        self, *names: str, tenant: str = "t", is_stored: bool = False
    ) -> AsyncIterator[Sequence[asyncio.Task[None]]]:
        for name in names:
            await self.log.create(name, tenant, is_stored=is_stored)
        tasks = [asyncio.create_task(self.run(name)) for name in names]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@pytest.fixture
def house() -> House:
    return House()


async def settled(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Return when the tasks have ended, or all wait for room."""
    await asyncio.wait(tasks, timeout=0.2)


async def test_what_nobody_reads_has_a_bound(house: House) -> None:
    names = [f"resp_{number}" for number in range(20)]
    async with house.running(*names) as runs:
        readers = [await house.log.open(name) for name in names]
        await settled(runs)
        assert not all(run.done() for run in runs)
        assert house.bytes.total <= house.bytes.share
        async with house.running("other", tenant="u") as others:
            assert numbers(await read_all(await house.log.open("other"))) == [*range(MANY + 1)]
            await asyncio.gather(*others)
        for reader in readers:
            assert numbers(await read_all(reader)) == [*range(MANY + 1)]
            await reader.aclose()
        await asyncio.gather(*runs)
    assert house.bytes.total == 0


async def test_a_reader_that_leaves_makes_room(house: House) -> None:
    names = [f"resp_{number}" for number in range(20)]
    async with house.running(*names) as runs:
        readers = [await house.log.open(name) for name in names]
        await settled(runs)
        for reader in readers:
            await reader.aclose()
        await asyncio.gather(*runs)
    assert house.bytes.total == 0


async def test_what_all_have_read_makes_room(house: House) -> None:
    names = [f"resp_{number}" for number in range(20)]
    async with house.running(*names) as runs:
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(read_all(await house.log.open(name))) for name in names]
        await asyncio.gather(*runs)
    assert all(numbers(read.result()) == [*range(MANY + 1)] for read in reads)
    with pytest.raises(NotFound):  # as of a log that was evicted
        await house.log.open(names[-1])
    assert house.bytes.total == 0


async def test_a_run_whose_events_the_store_has_never_waits(house: House) -> None:
    names = [f"resp_{number}" for number in range(20)]
    async with house.running(*names, is_stored=True) as runs:
        readers = [await house.log.open(name) for name in names]
        await asyncio.gather(*runs)
        assert house.bytes.total <= house.bytes.share
        for reader in readers:  # each ends where the log has forgotten, and goes on in the store
            read = numbers(await read_all(reader))
            assert read == [*range(len(read))]
        assert len(read) < MANY
        for reader in readers:
            await reader.aclose()
    assert house.bytes.total == 0


async def test_readers_of_logs_that_are_over_count(house: House) -> None:
    names, mute = [f"resp_{number}" for number in range(18)], list[EventBatches]()
    for name in names:
        await house.log.create(name, "t")
        await house.run(name, 4 * COUNT_EVERY)
    assert house.bytes.total == 0  # what is kept has bounds of its own
    with pytest.raises(ConcurrencyLimitExceeded):
        for name in names:
            mute.append(await house.log.open(name))
    assert len(mute) > 4
    for reader in mute:
        await reader.aclose()
    assert house.bytes.total == 0


async def test_a_lost_reader_counts_no_more(house: House) -> None:
    await house.log.create("resp_1", "t")
    await house.run("resp_1", 8 * COUNT_EVERY)
    reader = await house.log.open("resp_1")
    assert house.bytes.total > FREE_BYTES
    del reader
    assert house.bytes.total == 0


async def test_long_texts_and_log_probabilities_count(house: House) -> None:
    plain, long = (
        text(0),
        e.TextDelta(
            sequence_number=0, item_id="m", output_index=0, content_index=0, delta="x" * 1000
        ),
    )
    counts = []
    for event in (plain, long):
        await house.log.create("resp_1", "t")
        await house.log.append("resp_1", [event] * 4 * COUNT_EVERY)
        counts.append(house.bytes.total)
        await house.log.abandon("resp_1")
    assert counts[1] - counts[0] > 4 * COUNT_EVERY * 900


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["append", "open", "read", "close"])),
        max_size=60,
    ),
    st.booleans(),
)
async def test_each_reader_gets_events_without_gaps(
    steps: list[tuple[int, str]], is_stored: bool
) -> None:
    house = House()
    written, readers = [0] * 4, dict[int, EventBatches]()
    read: dict[int, list[int]] = {}
    names = [f"resp_{number}" for number in range(4)]
    for number, name in enumerate(names):
        await house.log.create(name, f"t{number % 2}", is_stored=is_stored)
    for number, step in steps:
        reader = readers.get(number)
        if step == "append":
            start = written[number]
            new = [text(each) for each in range(start, start + 600)]
            appending = asyncio.ensure_future(house.log.append(names[number], new))
            await yield_often()
            if not appending.done():  # it waits for readers: the events are there all the same
                appending.cancel()
                await asyncio.wait([appending])
            written[number] += 600
        elif step == "open" and reader is None:
            try:
                readers[number] = await house.log.open(names[number])
            except NotFound:
                assert house.bytes.total or written[number]
            else:
                read[number] = []
        elif step == "read" and reader is not None and len(read[number]) < written[number]:
            read[number] += numbers(await anext(reader, ()))
        elif step == "close" and reader is not None:
            await readers.pop(number).aclose()
        assert house.bytes.total <= house.bytes.max_bytes
        for got in read.values():
            assert got == [*range(len(got))]
    for name in names:
        await house.log.abandon(name)
    for reader in readers.values():
        await reader.aclose()
    readers.clear()
    assert house.bytes.total == 0
