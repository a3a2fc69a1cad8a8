"""Measure the cost of stores: `python benchmarks/stores.py [directory of the SQLite file]`.

CPU times are for the whole process with all threads. "beside a busy loop" means that short
callbacks keep the event loop busy, as when it streams to many clients.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from msgspec import Raw

from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import EventChunk, Lease, NewRun, StoredItem, StoredResponse
from antiphon.domain import events as e
from antiphon.domain.items import Message
from antiphon.domain.responses.response import Response

EVENTS = 100_000
RESPONSES = 2_000
EVENTS_AT_ONCE = 64
EVENT_BYTES = 250
TEXT = "All work and no play. " * 40


@contextmanager
def measured(name: str, count: int) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:54} {wall / count * 1e6:9.2f} µs  {cpu / count * 1e6:8.2f} µs CPU")


# --- events ---------------------------------------------------------------------------------------


def events(count: int) -> list[e.Event]:
    deltas: list[e.Event] = [
        e.TextDelta(sequence_number=n, item_id="msg_1", output_index=0, content_index=0, delta=" a")
        for n in range(count - 1)
    ]
    done = Response(id="resp_1", created_at=0, model="m", status="completed")
    return [*deltas, e.Completed(sequence_number=count - 1, response=done)]


async def wake_ups() -> None:
    """Measure the event loop alternating between two tasks: the minimum for the other figures."""
    waiting: list[asyncio.Future[None]] = []

    async def wait() -> None:
        for _ in range(EVENTS):
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]

    reader = asyncio.create_task(wait())
    await asyncio.sleep(0)
    with measured("floor: wake a task, one turn of the loop", EVENTS):
        for _ in range(EVENTS):
            waiting.pop().set_result(None)
            await asyncio.sleep(0)
    await reader


async def live(readers: int) -> None:
    log = MemoryEventLog()
    await log.create("resp_1", "t")

    async def read() -> None:
        async for _ in await log.open("resp_1"):
            pass

    tasks = [asyncio.create_task(read()) for _ in range(readers)]
    await asyncio.sleep(0)
    with measured(f"event log: append, then {readers} live reader(s), an event", EVENTS):
        for event in events(EVENTS):
            await log.append("resp_1", (event,))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)


async def replay() -> None:
    log = MemoryEventLog()
    await log.create("resp_1", "t")
    await log.append("resp_1", events(EVENTS))
    with measured("event log: replay, an event", EVENTS):
        async for _ in await log.open("resp_1"):
            pass


# --- responses ------------------------------------------------------------------------------------


def stored(number: int, *, previous: str | None = None) -> StoredResponse:
    raw = b'{"type":"message","id":"msg_%d","role":"user","content":"%b"}' % (number, TEXT.encode())
    return StoredResponse(
        response=Response(
            id=f"resp_{number}", created_at=0, model="m", previous_response_id=previous
        ),
        input=[StoredItem(id=f"msg_{number}", raw=Raw(raw))],
        run=NewRun(owner="srv_1", events=EventChunk(first=0, count=1, body=b"{}")),
    )


def lease(number: int) -> Lease:
    return Lease(tenant="tenant", response_id=f"resp_{number}")


def finished(number: int, *, previous: str | None = None) -> Response:
    answer = Message(id=f"msg_a{number}", role="assistant", content=TEXT, status="completed")
    return Response(
        id=f"resp_{number}",
        created_at=0,
        model="m",
        previous_response_id=previous,
        status="completed",
        output=(answer,),
    )


async def write(store: SqliteStore, first: int, *, tasks: int) -> None:
    numbers = iter(range(first, first + RESPONSES))

    async def one_after_the_other() -> None:
        for number in numbers:
            await store.create_response("tenant", stored(number))
            await store.finish_response(lease(number), finished(number))

    with measured(f"sqlite: create + finish, {tasks} task(s)", RESPONSES):
        await asyncio.gather(*[one_after_the_other() for _ in range(tasks)])


async def write_logs(store: SqliteStore, first: int, *, runs: int) -> None:
    """Write many events at a time, as long streams do."""
    chunks = RESPONSES // runs
    body = b"x" * EVENT_BYTES * EVENTS_AT_ONCE

    async def stream(number: int) -> None:
        await store.create_response("tenant", stored(number))
        for chunk in range(chunks):
            events = EventChunk(first=1 + chunk * EVENTS_AT_ONCE, count=EVENTS_AT_ONCE, body=body)
            await store.append_events(lease(number), events)

    with measured(f"sqlite: append, {runs} run(s), an event", chunks * runs * EVENTS_AT_ONCE):
        await asyncio.gather(*[stream(first + run) for run in range(runs)])


async def repeat(name: str, call: Callable[[], Awaitable[object]], count: int) -> None:
    with measured(name, count):
        for _ in range(count):
            await call()


async def responses(directory: Path) -> None:
    store = SqliteStore(directory / "benchmark.db")
    await store.start()
    for turn, tasks in enumerate((1, 32, 200)):
        await write(store, turn * RESPONSES, tasks=tasks)
    for first, runs in ((300_000, 1), (301_000, 32)):
        await write_logs(store, first, runs=runs)
    for number in range(100_000, 100_030):
        previous = f"resp_{number - 1}" if number > 100_000 else None
        await store.create_response("tenant", stored(number, previous=previous))
        await store.finish_response(lease(number), finished(number, previous=previous))

    async def get() -> None:
        await store.get_response("tenant", "resp_7")

    async def context() -> None:
        await store.get_context("tenant", "resp_100029")

    async def create_and_finish() -> None:
        nonlocal number
        number += 1
        await store.create_response("tenant", stored(number))
        await store.finish_response(lease(number), finished(number))

    number = 200_000
    await repeat("sqlite: get", get, 2_000)
    await repeat("sqlite: use", lambda: store.get_storage_usage("tenant"), 2_000)
    await repeat("sqlite: conversation of 30 responses, 60 items", context, 500)

    async def stay_busy() -> None:
        while True:
            until = time.perf_counter() + 200e-6
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    busy = [asyncio.create_task(stay_busy()) for _ in range(4)]
    await repeat("sqlite: get, beside a busy loop", get, 200)
    await repeat("sqlite: conversation of 30, beside a busy loop", context, 100)
    await repeat("sqlite: create + finish, beside a busy loop", create_and_finish, 200)
    for task in busy:
        task.cancel()
    await store.aclose()


async def main() -> None:
    await wake_ups()
    await live(1)
    await live(8)
    await replay()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as directory:
        await responses(Path(directory))


if __name__ == "__main__":
    uvloop.run(main())
