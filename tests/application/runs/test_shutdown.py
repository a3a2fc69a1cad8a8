"""Readers that stop with their server."""

from __future__ import annotations

import asyncio

import pytest
from tests.application.event_log_fixtures import ID, sequencer, words

from antiphon.adapters.stores.memory_event_log import BATCH, MemoryEventLog
from antiphon.application.runs.shutdown import ShutdownSignal, UntilShutdown
from antiphon.domain import deltas as d


async def test_what_is_there_is_read_to_its_end_and_nothing_is_waited_for() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    await log.create(ID)
    await log.append(ID, [*seq.open(), *seq.start(), *words(seq, *["word "] * 2 * BATCH)])
    whole = UntilShutdown(await log.open(ID), shutdown_signal)
    waits = UntilShutdown(await log.open(ID), shutdown_signal)
    first = [await anext(waits) for _ in range(3)]
    waiting = asyncio.ensure_future(anext(waits))
    await asyncio.sleep(0)
    shutdown_signal.trigger()
    async with asyncio.timeout(30):
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert [batch async for batch in whole] == first


async def test_a_log_that_has_its_end_is_read_to_it_after_the_moment() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    shutdown_signal.trigger()
    await log.create(ID)
    await log.append(ID, [*seq.open(), *seq.start(), *words(seq, *["word "] * 2 * BATCH)])
    await log.append(ID, [*seq.feed(d.TurnEnd("stop", d.TurnUsage())), *seq.complete()])
    read = [
        event
        async for batch in UntilShutdown(await log.open(ID), shutdown_signal)
        for event in batch
    ]
    assert [event.sequence_number for event in read] == list(range(len(read)))
    assert type(read[-1]).__name__ == "Completed"


async def test_a_wait_that_is_cancelled_loses_nothing() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    await log.create(ID)
    reader = UntilShutdown(await log.open(ID), shutdown_signal)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    first = seq.open()
    await log.append(ID, first)
    assert await anext(reader) == first


async def test_a_batch_that_comes_at_the_same_moment_is_read() -> None:
    log, seq, shutdown_signal = MemoryEventLog(), sequencer(), ShutdownSignal()
    await log.create(ID)
    reader = UntilShutdown(await log.open(ID), shutdown_signal)
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    first = seq.open()
    await log.append(ID, first)
    shutdown_signal.trigger()
    assert await waiting == first
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_who_leaves_at_the_moment_has_left() -> None:
    log, shutdown_signal = MemoryEventLog(), ShutdownSignal()
    await log.create(ID)
    waiting = asyncio.ensure_future(anext(UntilShutdown(await log.open(ID), shutdown_signal)))
    await asyncio.sleep(0)
    shutdown_signal.trigger()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
