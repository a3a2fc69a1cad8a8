"""Contract tests for how a store counts the use of API keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from antiphon.application.ports import Charge, RunSlot, Store
from antiphon.testing.samples import OWNER, US, finished_response, new_response
from antiphon.testing.stores.calls import beat, finish
from antiphon.testing.stores.fixtures import StoreFixtures

KEY = "key_1"
RACING, AT_A_TIME = 500, 8
"""Reservations on each of two servers, and how many of them race at any moment."""


def charge(
    amount: int = 1, *, name: str = "requests/min", start: int = 60, limit: int | None = None
) -> Charge:
    expires_at = int(time.time()) + 3600
    return Charge(name=name, start=start, amount=amount, expires_at=expires_at, limit=limit)


def slot(name: str, *, limit: int | None = None) -> RunSlot:
    return RunSlot(tenant=US, response_id=f"resp_{name}", owner=OWNER, limit=limit)


async def counts(store: Store, *charges: Charge) -> Sequence[int]:
    """Return the counters of these charges, without adding anything."""
    empty = [charge(0, name=each.name, start=each.start) for each in charges]
    return (await store.reserve_usage(KEY, empty)).counts


async def runs(store: Store) -> int:
    return (await store.reserve_usage(KEY, ())).runs


@pytest.mark.asyncio
class UsageStoreContract(StoreFixtures):
    """The part of StoreContract about what keys use."""

    async def test_charges_add_up_for_each_key_counter_and_window(
        self, store: Store, another: Store
    ) -> None:
        await store.reserve_usage(KEY, [charge(2), charge(5, name="tokens/day")])
        await another.reserve_usage(KEY, [charge(3)])
        await store.reserve_usage(KEY, [charge(7, start=120)])
        await store.reserve_usage("key_2", [charge(11)])
        charges = [charge(), charge(name="tokens/day"), charge(start=120), charge(start=180)]
        assert await counts(another, *charges) == [5, 5, 7, 0]

    async def test_large_amounts_are_exact(self, store: Store) -> None:
        amount = 10**15 + 1
        await store.reserve_usage(KEY, [charge(amount)])
        usage = await store.reserve_usage(KEY, [charge(1, limit=amount + 1)])
        assert usage.accepted
        assert usage.counts == [amount + 1]

    async def test_a_refused_reservation_adds_nothing(self, store: Store, another: Store) -> None:
        await beat(store, OWNER)
        both = [charge(1, limit=9), charge(8, name="tokens/min", limit=10)]
        assert (await store.reserve_usage(KEY, both, slot("a", limit=1))).accepted
        usage = await another.reserve_usage(KEY, both, slot("b"))
        assert (usage.accepted, usage.counts, usage.runs) == (False, [1, 8], 1)
        usage = await another.reserve_usage(KEY, [charge()], slot("b", limit=1))
        assert (usage.accepted, usage.counts, usage.runs) == (False, [1], 1)
        assert await counts(store, *both) == [1, 8]

    async def test_reading_a_full_counter_is_not_refused(self, store: Store) -> None:
        await store.reserve_usage(KEY, [charge(3)])
        assert (await store.reserve_usage(KEY, [charge(0, limit=2)])).accepted

    async def test_racing_reservations_admit_exactly_the_limit(
        self, store: Store, another: Store
    ) -> None:
        limit = RACING * 2 // 3
        charges = [charge(1, limit=limit), charge(2, name="tokens/day", limit=10**6)]

        async def reserve(server: Store) -> int:
            count = RACING // AT_A_TIME + 1
            usages = [await server.reserve_usage(KEY, charges) for _ in range(count)]
            return sum(usage.accepted for usage in usages)

        racing = (reserve(server) for server in (store, another) for _ in range(AT_A_TIME))
        assert sum(await asyncio.gather(*racing)) == limit
        assert await counts(store, *charges) == [limit, 2 * limit]

    async def test_racing_runs_take_exactly_the_slots(self, store: Store, another: Store) -> None:
        await beat(store, OWNER)
        usages = await asyncio.gather(
            *(
                server.reserve_usage(KEY, [charge()], slot(f"{name}{number}", limit=5))
                for name, server in (("a", store), ("b", another))
                for number in range(20)
            )
        )
        assert sum(usage.accepted for usage in usages) == 5
        assert await runs(another) == 5
        assert await counts(store, charge()) == [5]

    async def test_a_run_is_settled_once(self, store: Store, another: Store) -> None:
        await beat(store, OWNER)
        await store.reserve_usage(KEY, [charge(10)], slot("a"))
        assert await another.settle_usage(KEY, US, "resp_a", [charge(-4), charge(3, start=120)])
        assert not await store.settle_usage(KEY, US, "resp_a", [charge(-4)])
        assert not await store.settle_usage(KEY, "other", "resp_a", [charge(-4)])
        assert not await store.settle_usage("key_2", US, "resp_a", [charge(-4)])
        assert await counts(store, charge(), charge(start=120)) == [6, 3]
        assert await runs(store) == 0

    async def test_a_counter_never_falls_below_zero(self, store: Store) -> None:
        await beat(store, OWNER)
        await store.reserve_usage(KEY, [charge(1)], slot("a"))
        await store.settle_usage(KEY, US, "resp_a", [charge(-5), charge(-5, start=120)])
        assert await counts(store, charge(), charge(start=120)) == [0, 0]

    async def test_an_expired_counter_starts_again(self, store: Store) -> None:
        old = Charge(name="requests/min", start=60, amount=5, expires_at=120, limit=5)
        await store.reserve_usage(KEY, [old])
        assert await counts(store, charge()) == [0]

    async def test_a_response_takes_one_slot(self, store: Store) -> None:
        await beat(store, OWNER)
        for _ in range(2):
            usage = await store.reserve_usage(KEY, (), slot("a", limit=1))
            assert (usage.accepted, usage.runs) == (True, 1)

    async def test_the_slots_of_a_dead_server_are_free(self, store: Store, another: Store) -> None:
        await beat(store, OWNER)
        await store.reserve_usage(KEY, (), slot("a"))
        assert await runs(another) == 1
        await store.end_heartbeat(OWNER)
        assert await runs(another) == 0

    async def test_a_stored_response_has_its_slot_until_it_ends(
        self, store: Store, another: Store
    ) -> None:
        await beat(store, OWNER)
        await store.reserve_usage(KEY, (), slot("a"))
        await store.create_response(US, new_response("a"))
        await store.end_heartbeat(OWNER)
        assert await runs(another) == 1
        await beat(store, OWNER)
        assert await finish(store, finished_response("a"))
        assert await runs(another) == 0
