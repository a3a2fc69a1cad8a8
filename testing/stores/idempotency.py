"""Contract tests for a store's idempotency keys."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.application.ports import IdempotencyRecord, NewRun, Store
from antiphon.domain.errors import IdempotencyKeyInUse
from antiphon.testing.samples import (
    FAR_FUTURE,
    OWNER,
    THEM,
    US,
    chunk,
    finished_response,
    new_response,
)
from antiphon.testing.stores.calls import (
    beat,
    create_and_finish,
    finish,
    is_unknown,
    sweep,
    wait_until,
)
from antiphon.testing.stores.fixtures import StoreFixtures

FINGERPRINT = bytes(range(32))


async def reserve(
    store: Store,
    name: str,
    *,
    key: str = "key",
    tenant: str = US,
    fingerprint: bytes = FINGERPRINT,
    owner: str = OWNER,
    expires_at: float = FAR_FUTURE,
) -> IdempotencyRecord:
    return await store.reserve_idempotency_key(
        tenant,
        key,
        response_id=f"resp_{name}",
        fingerprint=fingerprint,
        owner=owner,
        expires_at=expires_at,
    )


async def holder(store: Store, key: str = "key", tenant: str = US) -> str:
    """Reserve the key for `asks`, and return the response that has it."""
    record = await reserve(store, "asks", key=key, tenant=tenant)
    return record.response_id.removeprefix("resp_")


@pytest.mark.asyncio
class IdempotencyStoreContract(StoreFixtures):
    """The part of StoreContract about idempotency keys."""

    async def test_a_free_key_can_be_reserved(self, store: Store) -> None:
        await beat(store, OWNER)
        mine = await reserve(store, "a")
        assert mine == IdempotencyRecord(
            response_id="resp_a", fingerprint=FINGERPRINT, exists=False
        )
        assert await reserve(store, "a") == mine

    async def test_a_reserved_key_names_its_response(self, store: Store, another: Store) -> None:
        await beat(store, OWNER)
        mine = await reserve(store, "a")
        assert await reserve(another, "b", fingerprint=b"other") == mine
        await store.create_response(US, new_response("a"))
        assert (await reserve(another, "b")).exists
        assert await finish(store, finished_response("a"))
        theirs = await reserve(another, "b", fingerprint=b"other")
        assert theirs == IdempotencyRecord(
            response_id="resp_a", fingerprint=FINGERPRINT, exists=True
        )

    async def test_one_of_many_callers_gets_the_key(self, store: Store, another: Store) -> None:
        await beat(store, OWNER)
        records = await asyncio.gather(
            *[reserve((store, another)[n % 2], str(n), fingerprint=b"%d" % n) for n in range(50)]
        )
        assert len(set(records)) == 1
        number = int(records[0].response_id.removeprefix("resp_"))
        assert records[0].fingerprint == b"%d" % number

    async def test_keys_are_independent(self, store: Store) -> None:
        await beat(store, OWNER)
        await reserve(store, "a")
        await reserve(store, "b", key="other")
        await reserve(store, "c", tenant=THEM)
        assert [await holder(store), await holder(store, "other")] == ["a", "b"]
        assert await holder(store, tenant=THEM) == "c"

    @pytest.mark.parametrize("key", ["' OR 1=1 --", "%", "*", "KEY", " key ", "~" * 255])
    async def test_a_key_is_taken_literally(self, store: Store, key: str) -> None:
        await beat(store, OWNER)
        await reserve(store, "a")
        await reserve(store, "b", key=key)
        assert [await holder(store), await holder(store, key)] == ["a", "b"]

    async def test_a_key_is_free_again_when_its_response_is_deleted(self, store: Store) -> None:
        await beat(store, OWNER)
        await reserve(store, "a")
        await create_and_finish(store, "a")
        await store.delete_response(US, "resp_a")
        assert await holder(store) == "asks"

    async def test_a_key_can_be_unreserved(self, store: Store, another: Store) -> None:
        await beat(store, OWNER)
        await reserve(store, "a")
        await another.release_idempotency_key(US, "key", "resp_b")
        await another.release_idempotency_key(THEM, "key", "resp_a")
        await another.release_idempotency_key(US, "other", "resp_a")
        assert await holder(store) == "a"
        await another.release_idempotency_key(US, "key", "resp_a")
        assert await holder(store) == "asks"

    async def test_a_key_stays_with_a_response_that_is_stored(
        self, store: Store, another: Store
    ) -> None:
        await beat(store, OWNER)
        await reserve(store, "a")
        await store.create_response(US, new_response("a"))
        await another.release_idempotency_key(US, "key", "resp_a")
        assert await holder(store) == "a"
        await store.delete_response(US, "resp_a")
        assert await holder(store) == "asks"

    async def test_a_dead_owners_key_is_free_if_its_response_was_never_created(
        self, store: Store, another: Store
    ) -> None:
        await beat(store, OWNER, ttl_s=0.1)
        await reserve(store, "a")
        await reserve(store, "kept", key="other")
        await store.create_response(US, new_response("kept"))

        async def is_free() -> bool:
            return (await reserve(another, "b", owner="srv_b")).response_id == "resp_b"

        await beat(store, "srv_b")
        await wait_until(is_free)
        assert await holder(store) == "b"
        assert await holder(store, "other") == "kept"

    async def test_a_response_that_has_lost_its_key_is_not_created(
        self, store: Store, another: Store
    ) -> None:
        await beat(store, OWNER)
        await reserve(store, "a")
        await store.end_heartbeat(OWNER)
        await beat(another, "srv_b")
        await reserve(another, "b", owner="srv_b")
        late = new_response("a", run=NewRun(owner=OWNER, job=b"job", events=chunk(0, 2), key="key"))
        with pytest.raises(IdempotencyKeyInUse):
            await store.create_response(US, late)
        assert await is_unknown(store.get_response(US, "resp_a"))
        assert (await store.get_storage_usage(US)).responses == 0
        await another.create_response(US, new_response("b", run=NewRun(owner="srv_b", key="key")))
        assert await holder(store) == "b"

    async def test_deleting_a_response_that_lost_its_key_leaves_the_key_alone(
        self, store: Store
    ) -> None:
        await reserve(store, "a")  # its owner has no heartbeat, so it is dead
        await store.create_response(US, new_response("b"))
        await reserve(store, "b")
        await store.delete_response(US, "resp_b")
        await store.release_idempotency_key(US, "key", "resp_a")
        await store.create_response(US, new_response("a"))
        await store.delete_response(US, "resp_a")
        assert await holder(store) == "asks"

    @pytest.mark.parametrize("theirs", [None, "other", "them"])
    async def test_a_response_cannot_be_created_with_a_key_that_it_never_had(
        self, store: Store, theirs: str | None
    ) -> None:
        await beat(store, OWNER)
        if theirs == "other":
            await reserve(store, "a", key="other")
        elif theirs == "them":
            await reserve(store, "a", tenant=THEM)
        with pytest.raises(IdempotencyKeyInUse):
            await store.create_response(US, new_response("a", run=NewRun(owner=OWNER, key="key")))
        assert await is_unknown(store.get_response(US, "resp_a"))

    async def test_a_key_has_one_response_even_if_its_owner_seems_dead(
        self, store: Store, another: Store
    ) -> None:
        async def first(name: str) -> bool:
            await reserve(store, name, key=name)
            await store.end_heartbeat(OWNER)
            try:
                await store.create_response(
                    US, new_response(name, run=NewRun(owner=OWNER, key=name))
                )
            except IdempotencyKeyInUse:
                return False
            return True

        async def second(name: str) -> bool:
            record = await reserve(another, f"{name}_again", key=name, owner="srv_b")
            return record.response_id == f"resp_{name}_again"

        await beat(another, "srv_b")
        for n in range(20):
            await beat(store, OWNER)
            mine, theirs = await asyncio.gather(first(f"n{n}"), second(f"n{n}"))
            assert not (mine and theirs)

    async def test_a_key_is_free_again_once_it_has_expired(self, store: Store) -> None:
        await beat(store, OWNER)
        await reserve(store, "a", expires_at=1.0)
        await reserve(store, "b", key="other")
        for name in ("a", "b"):
            await create_and_finish(store, name)
        await sweep(store)
        assert await holder(store) == "asks"
        assert await holder(store, "other") == "b"
        assert (await store.get_response(US, "resp_a")).status == "completed"

    async def test_a_swept_response_frees_its_key(self, store: Store) -> None:
        await beat(store, OWNER)
        await reserve(store, "a")
        await store.create_response(US, new_response("a", expires_at=1.0))
        assert await finish(store, finished_response("a"))
        await sweep(store)
        assert await holder(store) == "asks"
