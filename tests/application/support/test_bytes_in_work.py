"""The account of bytes in work: who may hold how much, who waits, and that every wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.application.support.bytes_in_work import (
    FREE_BYTES,
    BytesInWork,
    HeldBytes,
    Subject,
)
from antiphon.domain.errors import ConcurrencyLimitExceeded, RequestError, ServerOverloaded

SOON = 0.01


def hold(account: BytesInWork, tenant: str, subject: Subject = "requests") -> HeldBytes:
    return account.hold(tenant, subject, free=0)


def holding(account: BytesInWork, tenant: str, size: int) -> HeldBytes:
    held = hold(account, tenant)
    held.resize(size)
    return held


def test_what_is_small_does_not_count() -> None:
    account = BytesInWork(100)
    with account.hold("t", "requests") as held:
        held.resize(FREE_BYTES)
        assert account.total == 0
        with pytest.raises(ConcurrencyLimitExceeded):
            held.resize(FREE_BYTES + 1)


def test_a_tenant_has_half_of_all() -> None:
    account = BytesInWork(100)
    first = holding(account, "a", 50)
    with pytest.raises(ConcurrencyLimitExceeded):
        holding(account, "a", 1)
    first.resize(30)
    holding(account, "a", 20)
    assert account.held_by("a") == account.total == 50


def test_a_tenant_that_comes_finds_room_beside_those_that_take_all_they_can() -> None:
    account = BytesInWork(100)
    greedy = {name: hold(account, name) for name in "abcd"}
    for held in greedy.values():
        with pytest.raises((ConcurrencyLimitExceeded, ServerOverloaded)):
            for size in range(1, 100):
                held.resize(size)
    assert account.has_room("new", 3)


def test_the_block_of_a_holder_gives_back_what_it_held() -> None:
    account = BytesInWork(100)
    with hold(account, "a", "media") as held:
        held.resize(40)
        assert account.by_subject["media"] == account.total == 40
    assert account.by_subject["media"] == account.total == account.held_by("a") == 0


async def test_what_runs_waits_until_there_is_room() -> None:
    account = BytesInWork(100)
    first, second = holding(account, "a", 50), hold(account, "a")
    waiting = asyncio.create_task(second.wait_for(30))
    await asyncio.sleep(0)
    assert account.waiting == 1
    assert not account.has_room("a", 1)
    first.resize(20)
    await waiting
    assert (account.total, account.waiting) == (50, 0)


async def test_work_of_a_tenant_gets_room_in_its_order() -> None:
    account = BytesInWork(100)
    first, large, small = holding(account, "a", 50), hold(account, "a"), hold(account, "a")
    waiting = [asyncio.create_task(held.wait_for(size)) for held, size in ((large, 50), (small, 1))]
    await asyncio.sleep(0)
    first.resize(10)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    first.release()
    await waiting[0]
    large.release()
    await waiting[1]


async def test_a_tenant_that_waits_holds_up_no_other() -> None:
    account = BytesInWork(100)
    holding(account, "a", 50)
    waiting = asyncio.create_task(hold(account, "a").wait_for(10))
    await asyncio.sleep(0)
    holding(account, "b", 20)
    await hold(account, "c").wait_for(5)
    waiting.cancel()


@pytest.mark.parametrize(
    ("others", "error"), [(("a",), ConcurrencyLimitExceeded), (("b", "c"), ServerOverloaded)]
)
async def test_a_wait_ends(others: Sequence[str], error: type[RequestError]) -> None:
    account = BytesInWork(90)
    for other in others:
        holding(account, other, 45 if len(others) == 1 else 30)
    with pytest.raises(error):
        await hold(account, "a").wait_for(40, timeout_s=SOON)
    assert account.waiting == 0


async def test_what_can_never_have_room_does_not_wait() -> None:
    with pytest.raises(ConcurrencyLimitExceeded):
        await hold(BytesInWork(100), "a").wait_for(51, timeout_s=3600)


async def test_work_that_is_canceled_while_it_waits_holds_nothing() -> None:
    account = BytesInWork(100)
    first = holding(account, "a", 50)
    waiting = [asyncio.create_task(hold(account, "a").wait_for(50)) for _ in range(2)]
    await asyncio.sleep(0)
    first.release()  # the first one has its turn, and is canceled before it notices
    waiting[0].cancel()
    await waiting[1]
    assert account.total == 50


Step = tuple[int, int, bool]
"""A holder, its new size, and whether it waits for it."""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.booleans()), max_size=40))
def test_the_account_is_the_sum_of_what_is_held(steps: Sequence[Step]) -> None:
    async def run() -> None:
        account = BytesInWork(100)
        holders = [hold(account, f"t{n % 3}", ("media", "files")[n % 2]) for n in range(6)]
        waits: dict[int, asyncio.Task[None]] = {}
        for number, size, waits_for_it in steps:
            holder = holders[number]
            if number in waits and not waits[number].done():
                waits[number].cancel()
                await asyncio.wait({waits[number]})
            if waits_for_it:
                waits[number] = asyncio.create_task(holder.wait_for(size))
                await asyncio.sleep(0)
            else:
                try:
                    holder.resize(size)
                except RequestError:
                    assert size > holder.counted
            for _ in range(3):  # who got room learns of it
                await asyncio.sleep(0)
            assert 0 <= account.total == sum(each.counted for each in holders) <= 100
            assert account.total == sum(account.by_subject.values())
            for tenant in ("t0", "t1", "t2"):
                own = sum(each.counted for each in holders if each.tenant == tenant)
                assert account.held_by(tenant) == own <= account.share
        for task in waits.values():
            task.cancel()
        if waits:
            await asyncio.wait(waits.values())
        for task in waits.values():
            assert task.cancelled() or isinstance(task.exception(), RequestError | None)
        assert account.waiting == 0
        for holder in holders:
            holder.release()
        assert account.total == 0

    asyncio.run(run())
