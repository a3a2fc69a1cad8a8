"""What every store must do with notices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antiphon.application.ports import Lease, Store, WebhookDelivery
from antiphon.testing.samples import US, finished_response, new_response
from antiphon.testing.store_calls import finish, sweep, wait_until
from antiphon.testing.store_fixtures import StoreFixtures


def delivery(name: str) -> WebhookDelivery:
    body = b'{"id":"evt_%b","text":"\xc3\xa9"}' % name.encode()
    return WebhookDelivery(id=f"evt_{name}", tenant=US, endpoint="main", body=body)


async def leave_notices(store: Store, *names: str, response: str = "a") -> None:
    """Finish a response with these notices."""
    await store.create(US, new_response(response))
    lease = Lease(tenant=US, response_id=f"resp_{response}")
    assert await store.finish(
        lease, finished_response(response), deliveries=[delivery(name) for name in names]
    )


def ids(deliveries: Sequence[WebhookDelivery]) -> list[str]:
    return [one.id.removeprefix("evt_") for one in deliveries]


async def due(store: Store, *, limit: int = 100, claim_s: float = 60) -> list[str]:
    return ids(await store.claim_due(limit=limit, claim_s=claim_s))


@pytest.mark.asyncio
class OutboxContract(StoreFixtures):
    """What StoreContract says of notices."""

    async def test_nothing_is_due_at_first(self, store: Store) -> None:
        assert await due(store) == []

    async def test_a_notice_is_due_at_once_and_as_it_was_left(
        self, store: Store, another: Store
    ) -> None:
        await leave_notices(store, "x", "y")
        found = await another.claim_due(limit=10, claim_s=60)
        assert sorted(found, key=lambda one: one.id) == [delivery("x"), delivery("y")]

    async def test_nobody_else_is_given_a_notice_that_is_held(
        self, store: Store, another: Store
    ) -> None:
        await leave_notices(store, "x")
        assert await due(store) == ["x"]
        assert await due(store) == []
        assert await due(another) == []

    async def test_a_notice_that_is_not_held_any_more_is_due_again(self, store: Store) -> None:
        await leave_notices(store, "x")
        attempts: list[int] = []

        async def are_enough() -> bool:
            found = await store.claim_due(limit=10, claim_s=0.05)
            attempts.extend(one.attempts for one in found)
            return len(attempts) >= 4

        await wait_until(are_enough)
        assert attempts == [0, 1, 2, 3]

    async def test_a_delayed_notice_is_due_later(self, store: Store) -> None:
        await leave_notices(store, "x", "y")
        assert sorted(await due(store)) == ["x", "y"]
        await store.delay("evt_x", 3600)
        await store.delay("evt_y", 0.05)

        async def is_due() -> bool:
            return await due(store) == ["y"]

        await wait_until(is_due)
        assert await due(store) == []

    async def test_the_longest_due_comes_first(self, store: Store) -> None:
        for name in "xyz":
            await leave_notices(store, name, response=name)
        assert await due(store, limit=1) == ["x"]
        assert await due(store, limit=1) == ["y"]
        await store.delay("evt_x", 0)
        assert await due(store, limit=2) == ["z", "x"]

    async def test_of_many_that_ask_one_gets_a_notice(self, store: Store, another: Store) -> None:
        names = [str(number) for number in range(40)]
        await leave_notices(store, *names)
        given = await asyncio.gather(
            *[due((store, another)[number % 2], limit=4) for number in range(10)]
        )
        found = [name for one in given for name in one]
        assert len(found) == len(set(found))
        assert sorted([*found, *await due(store)]) == sorted(names)

    async def test_a_notice_that_is_removed_is_due_no_more(
        self, store: Store, another: Store
    ) -> None:
        await leave_notices(store, "x", "y")
        await store.remove("evt_x")
        await store.remove("evt_x")
        assert await due(another, claim_s=0) == ["y"]
        await another.remove("evt_y")
        await store.delay("evt_y", 0)
        assert await due(store) == []

    async def test_only_who_finishes_a_response_leaves_notices(self, store: Store) -> None:
        await store.create(US, new_response("a"))
        assert await finish(store, finished_response("a"))
        lease = Lease(tenant=US, response_id="resp_a")
        assert not await store.finish(lease, finished_response("a"), deliveries=[delivery("x")])
        assert await due(store) == []

    async def test_notices_outlive_their_response(self, store: Store) -> None:
        await store.create(US, new_response("swept", expires_at=1.0))
        lease = Lease(tenant=US, response_id="resp_swept")
        assert await store.finish(lease, finished_response("swept"), deliveries=[delivery("x")])
        await sweep(store, keep_events_s=0)
        await leave_notices(store, "y")
        await store.delete(US, "resp_a")
        assert await due(store) == ["x", "y"]
