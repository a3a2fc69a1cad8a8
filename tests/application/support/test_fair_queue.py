"""Slots that tenants share fairly."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.errors import ConcurrencyLimitExceeded, ServerOverloaded


async def take_turns(queue: FairQueue, tenants: str) -> str:
    """Hold a slot for each letter in turn; return the tenants in the order of their turns."""
    order: list[str] = []

    async def work(tenant: str) -> None:
        async with queue.slot(tenant):
            order.append(tenant)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for tenant in tenants:
            tasks.create_task(work(tenant))
    return "".join(order)


async def test_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    assert await take_turns(FairQueue(1), "aaaaabc") == "aabcaaa"


async def test_a_tenant_whose_work_hangs_leaves_a_slot_to_the_others() -> None:
    queue = FairQueue(3)
    for _ in range(2):
        await queue.acquire("hanging")
    hanging = asyncio.create_task(queue.acquire("hanging"))
    await asyncio.sleep(0)
    async with asyncio.timeout(30), queue.slot("other"):
        assert (queue.held_by("hanging"), queue.waiting_of("hanging")) == (2, 1)
    hanging.cancel()


async def test_a_full_queue_refuses_only_its_own_tenant() -> None:
    queue = FairQueue(1, max_waiting=1)
    await queue.acquire("a")
    waiting = asyncio.create_task(queue.acquire("a"))
    await asyncio.sleep(0)
    with pytest.raises(ConcurrencyLimitExceeded):
        await queue.acquire("a")
    other = asyncio.create_task(queue.acquire("b"))
    await asyncio.sleep(0)
    queue.release("a")
    await waiting
    queue.release("a")
    await other


async def test_a_request_that_leaves_the_queue_takes_no_slot() -> None:
    queue = FairQueue(1)
    await queue.acquire("a")
    leaving = [asyncio.create_task(queue.acquire("b")) for _ in range(2)]
    await asyncio.sleep(0)
    leaving[0].cancel()  # while it waits
    queue.release("a")
    leaving[1].cancel()  # after it got the slot
    await asyncio.wait(leaving)
    async with asyncio.timeout(30), queue.slot("c"):
        assert queue.waiting == 0


async def test_a_tenants_requests_are_served_by_priority_then_by_age() -> None:
    queue = FairQueue(1)
    await queue.acquire("a")
    places = [queue.join("a", priority=priority) for priority in (1, 0, 1, -1)]
    order = []
    for _ in places:
        queue.release("a")
        order += [n for n, one in enumerate(places) if one.is_taken and n not in order]
    assert order == [3, 1, 0, 2]


async def test_a_request_for_many_slots_is_not_overtaken() -> None:
    queue = FairQueue(3, per_tenant=3)
    assert queue.take("a", 2)
    many = queue.join("b", 3)
    assert not queue.take("c")
    few = queue.join("c")
    queue.release("a", 2)
    assert (many.is_taken, few.is_taken) == (True, False)
    queue.leave(many)
    assert few.is_taken


async def test_a_request_for_many_slots_that_leaves_lets_others_pass() -> None:
    queue = FairQueue(2, per_tenant=2)
    assert queue.take("a")
    many, few = queue.join("b", 2), queue.join("c")
    queue.leave(many)
    assert few.is_taken


async def test_a_tenant_with_its_share_does_not_hold_up_the_others() -> None:
    queue = FairQueue(3, per_tenant=2)
    assert queue.take("a", 2)
    queue.join("a")
    assert queue.join("b").is_taken


async def test_all_queues_together_may_be_full() -> None:
    queue = FairQueue(1, max_waiting=2, max_waiting_in_all=2)
    await queue.acquire("a")
    queue.check_room("a")
    queue.join("a")
    queue.join("b")
    with pytest.raises(ServerOverloaded):
        queue.check_room("b")
    with pytest.raises(ServerOverloaded):
        queue.join("b")
    assert queue.waiting == 2


@given(st.text("abc", max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_all_requests_get_a_slot_and_all_slots_come_back(
    tenants: str, slots: int, per_tenant: int
) -> None:
    async def check() -> None:
        queue = FairQueue(slots, per_tenant=per_tenant)
        assert sorted(await take_turns(queue, tenants)) == sorted(tenants)
        assert (queue.waiting, [queue.held_by(tenant) for tenant in "abc"]) == (0, [0, 0, 0])

    asyncio.run(check())
