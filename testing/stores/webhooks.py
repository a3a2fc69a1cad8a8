"""Contract tests for a store's webhook deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antiphon.application.ports import Lease, Store, WebhookDelivery
from antiphon.testing.samples import US, finished_response, new_response
from antiphon.testing.stores.calls import finish, sweep, wait_until
from antiphon.testing.stores.fixtures import StoreFixtures


def delivery(name: str, *, endpoint: str = "main") -> WebhookDelivery:
    body = b'{"id":"evt_%b","text":"\xc3\xa9"}' % name.encode()
    return WebhookDelivery(id=f"evt_{name}", tenant=US, endpoint=endpoint, body=body)


async def add_deliveries(
    store: Store, *names: str, response: str = "a", endpoint: str = "main"
) -> None:
    """Finish a response with these deliveries."""
    await store.create_response(US, new_response(response))
    lease = Lease(tenant=US, response_id=f"resp_{response}")
    assert await store.finish_response(
        lease,
        finished_response(response),
        deliveries=[delivery(name, endpoint=endpoint) for name in names],
    )


def ids(deliveries: Sequence[WebhookDelivery]) -> list[str]:
    return [one.id.removeprefix("evt_") for one in deliveries]


async def claim_names(store: Store, *, limit: int = 100, claim_s: float = 60) -> list[str]:
    return ids(await store.claim_due_deliveries(limit=limit, claim_s=claim_s))


@pytest.mark.asyncio
class OutboxContract(StoreFixtures):
    """The part of StoreContract about webhook deliveries."""

    async def test_nothing_is_due_at_first(self, store: Store) -> None:
        assert await claim_names(store) == []

    async def test_a_new_delivery_is_due_immediately_and_unchanged(
        self, store: Store, another: Store
    ) -> None:
        await add_deliveries(store, "x", "y")
        deliveries = await another.claim_due_deliveries(limit=10, claim_s=60)
        assert sorted(deliveries, key=lambda one: one.id) == [delivery("x"), delivery("y")]

    async def test_a_claimed_delivery_is_not_claimed_again(
        self, store: Store, another: Store
    ) -> None:
        await add_deliveries(store, "x")
        assert await claim_names(store) == ["x"]
        assert await claim_names(store) == []
        assert await claim_names(another) == []

    async def test_a_delivery_is_due_again_when_its_claim_ends(self, store: Store) -> None:
        await add_deliveries(store, "x")
        attempts: list[int] = []

        async def has_been_due_often() -> bool:
            deliveries = await store.claim_due_deliveries(limit=10, claim_s=0.05)
            attempts.extend(one.attempts for one in deliveries)
            return len(attempts) >= 4

        await wait_until(has_been_due_often)
        assert attempts == [0, 1, 2, 3]

    async def test_a_delayed_delivery_is_due_later(self, store: Store) -> None:
        await add_deliveries(store, "x", "y")
        assert sorted(await claim_names(store)) == ["x", "y"]
        await store.delay_delivery("evt_x", 3600)
        await store.delay_delivery("evt_y", 0.05)

        async def is_due() -> bool:
            return await claim_names(store) == ["y"]

        await wait_until(is_due)
        assert await claim_names(store) == []

    async def test_the_longest_due_comes_first(self, store: Store) -> None:
        for name in "xyz":
            await add_deliveries(store, name, response=name)
        assert await claim_names(store, limit=1) == ["x"]
        assert await claim_names(store, limit=1) == ["y"]
        await store.delay_delivery("evt_x", 0)
        assert await claim_names(store, limit=2) == ["z", "x"]

    async def test_endpoints_that_are_left_out_hold_up_no_others(
        self, store: Store, another: Store
    ) -> None:
        many = [f"slow_{number}" for number in range(250)]
        await add_deliveries(store, *many, endpoint="slow")
        await add_deliveries(store, "x", "y", response="b", endpoint="é")
        leave_out = {"slow", "unknown"}
        found = await another.claim_due_deliveries(limit=1, claim_s=60, leave_out=leave_out)
        assert [(one.endpoint, one.attempts) for one in found] == [("é", 0)]
        found += await store.claim_due_deliveries(limit=9, claim_s=60, leave_out=leave_out)
        assert sorted(ids(found)) == ["x", "y"]
        assert await another.claim_due_deliveries(limit=9, claim_s=60, leave_out=leave_out) == []

        left = await store.claim_due_deliveries(limit=300, claim_s=60)
        assert sorted(ids(left)) == sorted(many)
        assert {one.attempts for one in left} == {0}

    async def test_one_of_many_callers_claims_a_delivery(
        self, store: Store, another: Store
    ) -> None:
        names = [str(number) for number in range(40)]
        await add_deliveries(store, *names)
        claims = await asyncio.gather(
            *[claim_names((store, another)[number % 2], limit=4) for number in range(10)]
        )
        claimed_names = [name for claim in claims for name in claim]
        assert len(claimed_names) == len(set(claimed_names))
        assert sorted([*claimed_names, *await claim_names(store)]) == sorted(names)

    async def test_a_removed_delivery_is_never_due_again(
        self, store: Store, another: Store
    ) -> None:
        await add_deliveries(store, "x", "y")
        await store.delete_delivery("evt_x")
        await store.delete_delivery("evt_x")
        assert await claim_names(another, claim_s=0) == ["y"]
        await another.delete_delivery("evt_y")
        await store.delay_delivery("evt_y", 0)
        assert await claim_names(store) == []

    async def test_only_the_call_that_finishes_a_response_adds_deliveries(
        self, store: Store
    ) -> None:
        await store.create_response(US, new_response("a"))
        assert await finish(store, finished_response("a"))
        lease = Lease(tenant=US, response_id="resp_a")
        assert not await store.finish_response(
            lease, finished_response("a"), deliveries=[delivery("x")]
        )
        assert await claim_names(store) == []

    async def test_deliveries_outlive_their_response(self, store: Store) -> None:
        await store.create_response(US, new_response("swept", expires_at=1.0))
        lease = Lease(tenant=US, response_id="resp_swept")
        assert await store.finish_response(
            lease, finished_response("swept"), deliveries=[delivery("x")]
        )
        await sweep(store, keep_events_s=0)
        await add_deliveries(store, "y")
        await store.delete_response(US, "resp_a")
        assert await claim_names(store) == ["x", "y"]
