"""Storage quotas, checked against a usage that the store reports every few seconds."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.adapters.ids import new_id
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import NewRun, StorageUsage, StoredResponse
from antiphon.application.resources.quotas import CheckQuota, Quotas
from antiphon.domain.errors import QuotaExceeded
from antiphon.domain.responses.response import Response


class CountedStore(MemoryStore):
    """Counts how often it reports a usage."""

    reports = 0

    async def get_storage_usage(self, tenant: str) -> StorageUsage:
        self.reports += 1
        await asyncio.sleep(0)  # like a store that is not in memory
        return await super().get_storage_usage(tenant)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> CountedStore:
    return CountedStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def keep(store: MemoryStore, tenant: str, count: int) -> list[str]:
    ids = [new_id("resp") for _ in range(count)]
    for each in ids:
        response = Response(id=each, created_at=1, model="m")
        await store.create_response(
            tenant, StoredResponse(response=response, run=NewRun(owner="srv_1"))
        )
    return ids


async def test_without_a_quota_the_store_is_not_asked(store: CountedStore, clock: Clock) -> None:
    await CheckQuota(store, Quotas(), clock=clock)("us", responses=1)
    assert store.reports == 0


async def test_the_last_response_within_the_quota_is_accepted_and_the_next_is_refused(
    store: CountedStore, clock: Clock
) -> None:
    await keep(store, "us", 2)
    check = CheckQuota(store, Quotas(responses=3), clock=clock)
    await check("us", responses=1)
    with pytest.raises(QuotaExceeded) as caught:
        await check("us", responses=1)
    assert caught.value.code == "insufficient_quota"
    assert "Delete" in caught.value.message
    await check("them", responses=1)


async def test_deleting_makes_room_at_once(store: CountedStore, clock: Clock) -> None:
    [first, _] = await keep(store, "us", 2)
    check = CheckQuota(store, Quotas(responses=2), clock=clock)
    with pytest.raises(QuotaExceeded):
        await check("us", responses=1)
    await store.delete_response("us", first)
    check.forget("us")
    await check("us", responses=1)


async def test_deleting_at_another_server_makes_room_within_five_seconds(
    store: CountedStore, clock: Clock
) -> None:
    [first, _] = await keep(store, "us", 2)
    check = CheckQuota(store, Quotas(responses=2), clock=clock)
    with pytest.raises(QuotaExceeded):
        await check("us", responses=1)
    await store.delete_response("us", first)
    clock.now += 5
    await check("us", responses=1)


async def test_bytes_are_limited_as_well(store: CountedStore, clock: Clock) -> None:
    check = CheckQuota(store, Quotas(bytes=10), clock=clock)
    await check("us", responses=1)
    await keep(store, "us", 1)
    clock.now += 5
    for responses in (0, 1):
        with pytest.raises(QuotaExceeded):
            await check("us", responses=responses)


async def test_bytes_are_counted_between_two_reports_of_the_store(
    store: CountedStore, clock: Clock
) -> None:
    check = CheckQuota(store, Quotas(bytes=100), clock=clock)
    for _ in range(3):
        await check("us", responses=1, size=40)
    with pytest.raises(QuotaExceeded):
        await check("us", responses=1, size=40)
    assert store.reports == 1


async def test_items_do_not_count_as_responses(store: CountedStore, clock: Clock) -> None:
    await keep(store, "us", 1)
    await CheckQuota(store, Quotas(responses=1), clock=clock)("us")


async def test_a_burst_is_counted_between_two_reports_of_the_store(
    store: CountedStore, clock: Clock
) -> None:
    check = CheckQuota(store, Quotas(responses=10), clock=clock)

    async def is_accepted() -> bool:
        try:
            await check("us", responses=1)
        except QuotaExceeded:
            return False
        return True

    assert sum(await asyncio.gather(*(is_accepted() for _ in range(100)))) == 10
    reports = store.reports
    assert not await is_accepted()
    assert store.reports == reports
