"""Readers of events end when the server shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest
from tests.application.event_log_fixtures import ID, feed_words, run_loop, sequencer

from antiphon.adapters.stores.memory.event_log import BATCH, MemoryEventLog
from antiphon.application.runs.until_shutdown import ShutdownSignal, UntilShutdown
from antiphon.domain import deltas as d
from antiphon.domain.events import Event


class SlowClient:
    """A client that receives single events at once, and larger batches only when it `reads`."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.received: list[Event] = []

    def write(self, batch: Sequence[Event]) -> Awaitable[None] | None:
        if len(batch) > 1:
            return self.write_slowly(batch)
        self.received.extend(batch)
        return None

    async def write_slowly(self, batch: Sequence[Event]) -> None:
        await self.reads.wait()
        self.received.extend(batch)


async def test_after_shutdown_readers_get_ready_events_and_do_not_wait() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    await log.create(ID, "t")
    await log.append(ID, [*seq.open(), *seq.start(), *feed_words(seq, *["word "] * 2 * BATCH)])
    unread = UntilShutdown(await log.open(ID), shutdown_signal)
    reader = UntilShutdown(await log.open(ID), shutdown_signal)
    first = [await anext(reader) for _ in range(3)]
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    shutdown_signal.trigger()
    async with asyncio.timeout(30):
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert [batch async for batch in unread] == first


async def test_a_complete_log_is_read_to_its_end_after_shutdown() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    shutdown_signal.trigger()
    await log.create(ID, "t")
    await log.append(ID, [*seq.open(), *seq.start(), *feed_words(seq, *["word "] * 2 * BATCH)])
    await log.append(ID, [*seq.feed(d.TurnEnd("stop", d.TurnUsage())), *seq.complete()])
    read = [
        event
        async for batch in UntilShutdown(await log.open(ID), shutdown_signal)
        for event in batch
    ]
    assert [event.sequence_number for event in read] == list(range(len(read)))
    assert type(read[-1]).__name__ == "Completed"


async def test_a_cancelled_wait_loses_no_events() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    await log.create(ID, "t")
    reader = UntilShutdown(await log.open(ID), shutdown_signal)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first = seq.open()
    await log.append(ID, first)
    assert await anext(reader) == first


async def test_a_batch_that_comes_with_the_shutdown_is_read() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    await log.create(ID, "t")
    reader = UntilShutdown(await log.open(ID), shutdown_signal)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    first = seq.open()
    await log.append(ID, first)
    shutdown_signal.trigger()
    assert await waiting == first
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_a_reader_cancelled_during_shutdown_stays_cancelled() -> None:
    log, shutdown_signal = MemoryEventLog(), ShutdownSignal()
    await log.create(ID, "t")
    waiting = asyncio.ensure_future(anext(UntilShutdown(await log.open(ID), shutdown_signal)))
    await asyncio.sleep(0)
    shutdown_signal.trigger()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_forwarding_ends_at_shutdown_after_the_ready_events() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    written: list[Event] = []
    await log.create(ID, "t")
    first = [*seq.open(), *seq.start()]
    forwarding = asyncio.ensure_future(
        UntilShutdown(await log.open(ID), shutdown_signal).forward(written.extend)
    )
    await log.append(ID, first)
    await run_loop()
    shutdown_signal.trigger()
    last = feed_words(seq, "ready")
    await log.append(ID, last)
    async with asyncio.timeout(30):
        await forwarding
    assert written == [*first, *last]


async def test_a_write_that_waits_is_finished_after_shutdown() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    client = SlowClient()
    await log.create(ID, "t")
    forwarding = asyncio.ensure_future(
        UntilShutdown(await log.open(ID), shutdown_signal).forward(client.write_slowly)
    )
    events = [*seq.open(), *seq.start(), *feed_words(seq, "a")]
    await log.append(ID, events[:2])
    await run_loop()
    await log.append(ID, events[2:])
    shutdown_signal.trigger()
    await run_loop()
    assert not forwarding.done()
    client.reads.set()
    async with asyncio.timeout(30):
        await forwarding
    assert client.received == events


@pytest.mark.parametrize("turns", range(4))
async def test_no_event_is_written_after_one_that_the_shutdown_cut_off(turns: int) -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    client = SlowClient()
    await log.create(ID, "t")
    forwarding = asyncio.ensure_future(
        UntilShutdown(await log.open(ID), shutdown_signal).forward(client.write)
    )
    await run_loop()
    await log.append(ID, seq.open())
    await run_loop()
    shutdown_signal.trigger()
    for _ in range(turns):
        await asyncio.sleep(0)
    await log.append(ID, [*seq.start(), *feed_words(seq, "a")])
    await run_loop()
    await log.append(ID, feed_words(seq, "b"))
    client.reads.set()
    async with asyncio.timeout(30):
        await forwarding
    numbers = [event.sequence_number for event in client.received]
    assert numbers == list(range(len(numbers)))
