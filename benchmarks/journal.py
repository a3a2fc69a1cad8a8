"""Measure the cost of storing events before clients see them: `python -m benchmarks.journal [dir]`.

Each run has EVENTS events, STEP per engine step, and one reader. The benchmark alternates between
the foreground journal and the durable one on a SQLite file in that folder, with one write per step.
CPU times are for the whole process with all threads.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import uvloop

from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import Lease, NewRun, Store, StoredResponse
from antiphon.application.runs.event_chunks import decode_chunk, encode_chunk
from antiphon.application.runs.journal import DurableJournal, ForegroundJournal, Journal
from antiphon.application.runs.stored_events import StoredEvents
from antiphon.domain import events as e
from antiphon.domain.events import Event
from antiphon.domain.responses.response import Response
from antiphon.domain.sequencer import Sequencer

EVENTS = 16_000
STEP = 64
AT_ONCE = (1, 8)
ROUNDS = 7
BAR_US = 2.0
"""How much more CPU an event may take in the durable journal."""


def run_of(name: str) -> Sequencer:
    response = Response(id=name, created_at=0, model="m", background=True)
    return Sequencer(response, new_id=lambda prefix: f"{prefix}_1", now=lambda: 0.0)


def steps() -> list[list[Event]]:
    """Deltas from number 2 on, as the sequencer numbers them after the first two events."""
    return [
        [
            e.TextDelta(
                sequence_number=number,
                item_id="msg_0123456789abcdef0123456789abcdef",
                output_index=0,
                content_index=0,
                delta=" word",
            )
            for number in range(first, first + STEP)
        ]
        for first in range(2, EVENTS + 2, STEP)
    ]


async def write(log: MemoryEventLog, journal: Journal, name: str, given: list[list[Event]]) -> None:
    """Write all steps, each when the one before it was read."""
    reader = await log.open(name, after=1)
    for step in given:
        await journal.append(step)
        last = -1
        while last != step[-1].sequence_number:
            last = (await anext(reader))[-1].sequence_number


async def journal_of(store: Store, log: MemoryEventLog, name: str, *, durable: bool) -> Journal:
    run = run_of(name)
    first = [*run.open(), *run.start()]
    new = NewRun(owner="srv_1", events=encode_chunk(first) if durable else None)
    await store.create_response("t", StoredResponse(response=run.response, run=new))
    await log.create(name, "t")
    await log.append(name, first)
    lease = Lease(tenant="t", response_id=name, epoch=1)
    if durable:
        return DurableJournal(store, log, lease, write_every_s=0)
    return ForegroundJournal(log, lease, store)


async def written(store: Store, names: Sequence[str], *, durable: bool) -> float:
    """Return the CPU microseconds of writing an event and reading it."""
    log = MemoryEventLog()
    writes = [
        write(log, await journal_of(store, log, name, durable=durable), name, steps())
        for name in names
    ]
    cpu = time.process_time()
    await asyncio.gather(*writes)
    return (time.process_time() - cpu) / EVENTS / len(names) * 1e6


async def replayed(store: Store, name: str) -> float:
    """Return the CPU microseconds of reading an event back out of the store."""
    reader = await StoredEvents.open(store, "t", name)
    cpu, last = time.process_time(), -1
    while last != EVENTS + 1:
        last = (await anext(reader))[-1].sequence_number
    return (time.process_time() - cpu) / EVENTS * 1e6


def encoding() -> tuple[float, float]:
    """Return the CPU microseconds of writing an event down, and of reading it."""
    given = steps()
    start = time.process_time()
    chunks = [encode_chunk(step) for step in given]
    middle = time.process_time()
    for chunk in chunks:
        decode_chunk(chunk)
    end = time.process_time()
    return (middle - start) / EVENTS * 1e6, (end - middle) / EVENTS * 1e6


async def compare(kind: str, store: Store, at_once: int) -> bool:
    foreground, durable, replay = [], [], []
    for turn in range(ROUNDS):
        kept = [f"resp_{at_once}_{turn}_{run}" for run in range(at_once)]
        shown = [f"{name}_shown" for name in kept]
        foreground.append(await written(store, shown, durable=False))
        durable.append(await written(store, kept, durable=True))
        replay.append(await replayed(store, kept[0]))
    more = [late - early for early, late in zip(foreground, durable, strict=True)]
    print(
        f"{kind}, {at_once} at once: foreground {median(foreground):.2f}, durable"
        f" {median(durable):.2f}, more {median(more):.2f} ({min(more):.2f} to {max(more):.2f}),"
        f" read from the store {median(replay):.2f} µs CPU an event"
    )
    return median(more) <= BAR_US


async def main(folder: Path) -> bool:
    down, back = encoding()
    print(f"as bytes: written {down:.2f}, read {back:.2f} µs CPU an event")
    met = True
    for kind, store in (("memory", MemoryStore()), ("sqlite", SqliteStore(folder / "journal.db"))):
        await store.start()
        met = [await compare(kind, store, at_once) for at_once in AT_ONCE][-1]
        await store.aclose()
    return met


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as made:
        met = uvloop.run(main(Path(made)))
    print(f"bar: {BAR_US} µs more on SQLite, {AT_ONCE[-1]} at once: {'met' if met else 'MISSED'}")
    sys.exit(not met)
