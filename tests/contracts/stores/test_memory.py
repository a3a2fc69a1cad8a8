"""The stores in memory beyond the contract: their memory stays bounded."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import EventChunk, NewRun, StoredItem
from antiphon.domain.errors import NotFound
from antiphon.testing.event_log import numbers, read_all, run_of, text, yield_often
from antiphon.testing.samples import (
    FAR_FUTURE,
    US,
    finished_response,
    new_response,
    turn_item_names,
)
from antiphon.testing.stores.calls import (
    claim,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    is_gone,
    is_unknown,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def append_finished_run(log: MemoryEventLog, name: str, count: int = 10) -> None:
    await log.create(name, "t")
    await log.append(name, run_of(count))


async def has_log(log: MemoryEventLog, name: str) -> bool:
    try:
        await log.open(name)
    except NotFound:
        return False
    return True


async def wait_until_gone(log: MemoryEventLog, name: str) -> None:
    for _ in range(500):
        if not await has_log(log, name):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} is still there after 5 s")


async def test_the_logs_that_finished_first_are_evicted_when_there_are_too_many_events() -> None:
    log = MemoryEventLog(keep_events=30)
    for name in "abcd":
        await append_finished_run(log, name)
    await log.create("next", "t")
    assert [await has_log(log, name) for name in "abcd"] == [False, True, True, True]


async def test_logs_are_evicted_when_their_responses_are_too_large() -> None:
    log = MemoryEventLog(keep_bytes=1_000_000)
    for name in "ab":
        await append_finished_run(log, name)
    await log.create("large", "t")
    *events, last = run_of(10)
    response = msgspec.structs.replace(last.response, instructions="x" * 1_000_000)
    await log.append("large", [*events, msgspec.structs.replace(last, response=response)])
    await append_finished_run(log, "c")
    await log.create("next", "t")
    assert [await has_log(log, name) for name in ("a", "b", "large", "c")] == [
        False,
        False,
        False,
        True,
    ]


async def test_logs_are_evicted_in_the_order_in_which_they_finished() -> None:
    log = MemoryEventLog(keep_events=10)
    await log.create("first", "t")
    await append_finished_run(log, "second")
    await log.append("first", run_of(10))
    await log.create("next", "t")
    assert [await has_log(log, name) for name in ("first", "second")] == [True, False]


async def test_logs_that_finished_long_ago_are_evicted() -> None:
    clock = Clock()
    log = MemoryEventLog(keep_s=600, clock=clock)
    await append_finished_run(log, "old")
    clock.now += 300
    await append_finished_run(log, "young")
    clock.now += 301
    await log.create("next", "t")
    assert [await has_log(log, name) for name in ("old", "young")] == [False, True]


async def test_an_old_log_goes_even_if_no_other_is_created() -> None:
    clock = Clock()
    log = MemoryEventLog(keep_s=0.05, clock=clock)
    await append_finished_run(log, "old")
    clock.now += 0.04
    await append_finished_run(log, "young")
    clock.now += 0.02
    await wait_until_gone(log, "old")
    assert await has_log(log, "young")
    clock.now += 0.04
    await wait_until_gone(log, "young")


async def test_a_running_log_is_never_evicted() -> None:
    clock = Clock()
    log = MemoryEventLog(keep_events=0, keep_s=0, clock=clock)
    await log.create("running", "t")
    await log.append("running", [text(0)])
    clock.now += 1_000_000
    await append_finished_run(log, "other")
    await log.create("next", "t")
    assert await has_log(log, "running")
    assert not await has_log(log, "other")


async def test_dropping_a_log_makes_room_for_others() -> None:
    log = MemoryEventLog(keep_events=20)
    await append_finished_run(log, "a")
    await append_finished_run(log, "b")
    await log.drop("b")
    await append_finished_run(log, "c")
    await log.create("next", "t")
    assert [await has_log(log, name) for name in "abc"] == [True, False, True]


async def test_a_reader_of_an_evicted_log_can_read_it_to_the_end() -> None:
    log = MemoryEventLog(keep_events=0)
    await append_finished_run(log, "a")
    batches = await log.open("a")
    await log.create("next", "t")
    assert not await has_log(log, "a")
    assert numbers(await read_all(batches)) == list(range(10))


async def test_a_reader_whose_wait_timed_out_continues_where_it_was() -> None:
    log = MemoryEventLog()
    await log.create("a", "t")
    await log.append("a", run_of(300)[:299])
    batches = await log.open("a")
    read_numbers = numbers(await anext(batches))
    for _ in range(3):
        waiting = asyncio.create_task(batches.__anext__())
        waiting.cancel()
        await asyncio.wait([waiting])
    while len(read_numbers) < 299:
        read_numbers += numbers(await anext(batches))
    waiting = asyncio.create_task(batches.__anext__())
    await yield_often()
    waiting.cancel()
    await asyncio.wait([waiting])
    await log.append("a", run_of(300)[299:])
    assert read_numbers + numbers(await read_all(batches)) == list(range(300))


async def test_canceled_readers_leave_nothing_behind() -> None:
    log = MemoryEventLog()
    await log.create("a", "t")
    for _ in range(10):
        waiting = asyncio.create_task(read_all(await log.open("a")))
        await yield_often()
        waiting.cancel()
        await asyncio.wait([waiting])
    assert log._logs["a"].waiters == []


async def test_the_oldest_responses_are_deleted_when_there_are_too_many() -> None:
    store = MemoryStore(keep=3)
    await store.create_response(US, new_response("running"))
    for name, before in (("a", None), ("b", "a"), ("c", None)):
        await create_and_finish(store, name, after=before)
    assert await is_gone(store, "a")
    assert await context_of(store, "b") == turn_item_names("a", "b")
    await create_and_finish(store, "d")
    assert await is_gone(store, "b")
    assert await is_unknown(store.get_item(US, "msg_a_in"))
    assert (await store.get_response(US, "resp_running")).status == "in_progress"


async def test_the_oldest_conversations_are_deleted_when_there_are_too_many() -> None:
    store = MemoryStore(keep=2)
    await create_conversation(store, "running")
    await claim(store, "running", "running")
    for name in "abc":
        await create_conversation(store, name, name)
    assert [await is_unknown(store.get_conversation(US, f"conv_{name}")) for name in "abc"] == [
        True,
        True,
        False,
    ]
    assert await is_unknown(store.get_item(US, "msg_a"))
    assert not await is_unknown(store.get_conversation(US, "conv_running"))


async def test_an_item_does_not_keep_its_whole_request_in_memory() -> None:
    store = MemoryStore()
    body = b'[{"content":"hi"},"%b"]' % (b"x" * 1000)
    holders = sys.getrefcount(body)
    raw = msgspec.json.decode(body, type=list[msgspec.Raw])[0]
    assert sys.getrefcount(body) > holders
    await store.create_response(US, new_response("a", StoredItem(id="msg_a", raw=raw)))
    del raw
    assert sys.getrefcount(body) == holders
    assert bytes((await store.get_item(US, "msg_a")).raw) == b'{"content":"hi"}'


async def test_a_dropped_run_leaves_nothing_behind() -> None:
    log = MemoryEventLog()
    await log.create("a", "t")
    waiting = asyncio.create_task(read_all(await log.open("a")))
    await yield_often()
    await log.drop("a")
    await log.append("a", run_of(3))
    assert numbers(await waiting) == [0, 1, 2]
    del waiting
    assert list(log._dropped) == []


async def test_an_evicted_response_leaves_nothing_behind() -> None:
    store = MemoryStore(keep=1)
    for name in "abc":
        store.record_heartbeat("srv_a", 60)
        run = NewRun(owner="srv_a", events=EventChunk(first=0, count=1, body=b"x" * 1000))
        await store.reserve_idempotency_key(
            US,
            name,
            response_id=f"resp_{name}",
            fingerprint=b"",
            owner="srv_a",
            expires_at=FAR_FUTURE,
        )
        await store.create_response(US, new_response(name, run=run))
        assert await finish(store, finished_response(name))
    assert await is_gone(store, "b")
    assert (await store.get_storage_usage(US)).responses == 1
    assert (await store.get_storage_usage(US)).bytes < 3_000
    assert list(store._reservations) == [(US, "c")]


async def test_the_store_uses_the_clocks_that_it_is_given() -> None:
    day, steady = Clock(), Clock()
    store = MemoryStore(clock=day, steady=steady)
    await store.create_response(US, new_response("a", expires_at=day.now + 100))
    store.record_heartbeat("srv_a", 15)
    steady.now += 15
    [run] = await store.lease_runs("srv_b", limit=1)
    assert await store.finish_response(run.lease, finished_response("a"))
    day.now += 99
    assert await store.sweep(keep_events_s=0) == 0
    day.now += 1
    assert await store.sweep(keep_events_s=0) == 1
