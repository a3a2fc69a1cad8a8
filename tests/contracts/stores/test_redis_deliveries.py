"""Webhook deliveries in a Redis that has very many of them, and what it may lose."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
from tests.contracts.conftest import REDIS, redis_prefix

from antiphon.adapters.stores.redis.deliveries import MAX_STEPS
from antiphon.adapters.stores.redis.durability import NOT_DURABLE, UNKNOWN, warn_of
from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.testing.stores.webhooks import add_deliveries, ids

SCANNED = 1000
"""How many deliveries one step of a claim looks at (lua/webhook_deliveries.lua)."""


@pytest.fixture
async def redis_store() -> AsyncIterator[RedisStore]:
    async with redis_prefix() as prefix:
        store = RedisStore(REDIS, prefix=prefix)
        await store.start()
        yield store
        await store.aclose()


async def claim_others(store: RedisStore) -> list[str]:
    found = await store.claim_due_deliveries(limit=8, claim_s=60, leave_out={"down"})
    return ids(found)


async def test_a_claim_passes_thousands_that_are_left_out(redis_store: RedisStore) -> None:
    many = [f"down_{number}" for number in range(2 * SCANNED + 500)]
    await add_deliveries(redis_store, *many, endpoint="down")
    await add_deliveries(redis_store, "x", "y", response="b", endpoint="up")
    assert sorted(await claim_others(redis_store)) == ["x", "y"]
    assert await claim_others(redis_store) == []


async def test_a_claim_that_stops_among_them_goes_on_where_it_stopped(
    redis_store: RedisStore,
) -> None:
    for part in range(MAX_STEPS + 1):
        many = [f"down_{part}_{number}" for number in range(SCANNED)]
        await add_deliveries(redis_store, *many, response=f"d{part}", endpoint="down")
    await add_deliveries(redis_store, "x", response="b", endpoint="up")
    assert await claim_others(redis_store) == []
    assert await claim_others(redis_store) == ["x"]
    assert len(await redis_store.claim_due_deliveries(limit=8, claim_s=60)) == 8


@pytest.mark.parametrize(("durability", "levels"), [(NOT_DURABLE, ["WARNING"]), (UNKNOWN, [])])
def test_that_everything_may_be_lost_is_a_warning_of_its_own(
    durability: str, levels: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        warn_of(durability)
    assert [record.levelname for record in caplog.records] == levels
    assert all("All stored data may be lost" in line for line in caplog.messages)
