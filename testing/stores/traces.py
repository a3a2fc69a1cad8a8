"""Contract tests for a store's traces of responses."""

from __future__ import annotations

import pytest

from antiphon.application.ports import Lease, Store
from antiphon.testing.samples import OWNER, THEM, US, finished_response, new_response
from antiphon.testing.stores.calls import create_and_finish, finish, is_unknown, sweep
from antiphon.testing.stores.fixtures import StoreFixtures

ODD = b"\0\xff{"
LEASE = Lease(tenant=US, response_id="resp_a")


@pytest.mark.asyncio
class TraceStoreContract(StoreFixtures):
    """The part of StoreContract about traces."""

    async def test_a_trace_is_read_as_it_was_written(self, store: Store, another: Store) -> None:
        await store.create_response(US, new_response("a"))
        assert await store.save_trace(LEASE, ODD)
        assert await another.get_trace(US, "resp_a") == ODD
        assert await finish(store, finished_response("a"))
        assert await another.get_trace(US, "resp_a") == ODD

    async def test_the_last_trace_of_a_response_counts(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        assert await store.save_trace(LEASE, ODD)
        assert await store.save_trace(LEASE, b"")
        assert await store.get_trace(US, "resp_a") == b""

    async def test_a_response_need_not_have_a_trace(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        assert await store.get_trace(US, "resp_a") is None

    async def test_a_void_lease_saves_no_trace(self, store: Store) -> None:
        await create_and_finish(store, "a")
        assert not await store.save_trace(LEASE, ODD)
        await store.create_response(US, new_response("b"))
        for lease in (
            Lease(tenant=US, response_id="resp_b", epoch=2),
            Lease(tenant=THEM, response_id="resp_b"),
            Lease(tenant=US, response_id="resp_c"),
        ):
            assert not await store.save_trace(lease, ODD)
        assert await store.get_trace(US, "resp_a") is None
        assert await store.get_trace(US, "resp_b") is None

    async def test_a_trace_belongs_to_its_tenant(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        await store.create_response(THEM, new_response("a"))
        assert await store.save_trace(LEASE, ODD)
        assert await store.get_trace(THEM, "resp_a") is None
        assert await is_unknown(store.get_trace(THEM, "resp_b"))

    async def test_a_trace_goes_with_its_response(self, store: Store, another: Store) -> None:
        await create_and_finish(store, "a")
        await store.delete_response(US, "resp_a")
        empty = await store.get_storage_usage(US)
        for parent in (None, "a"):  # a response that another one continues stays in some stores
            await store.create_response(US, new_response("a"))
            assert await store.save_trace(LEASE, ODD)
            assert await finish(store, finished_response("a"))
            if parent is not None:
                await create_and_finish(store, "b", after=parent)
            await store.delete_response(US, "resp_a")
            assert await is_unknown(another.get_trace(US, "resp_a"))
            if parent is None:
                assert await store.get_storage_usage(US) == empty

    async def test_a_trace_is_swept_with_its_response(self, store: Store) -> None:
        await store.create_response(US, new_response("a", expires_at=0))
        assert await store.save_trace(LEASE, ODD * 100)
        assert await finish(store, finished_response("a"))
        assert await sweep(store) == 1
        assert await is_unknown(store.get_trace(US, "resp_a"))
        assert (await store.get_storage_usage(US)).bytes == 0

    async def test_a_trace_counts_in_the_usage(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))

        async def size() -> int:
            return (await store.get_storage_usage(US)).bytes

        before = await size()
        await store.save_trace(LEASE, bytes(1000))
        assert await size() == before + 1000
        await store.save_trace(LEASE, bytes(10))
        assert await size() == before + 10
        unused = await size()
        assert await finish(store, finished_response("a"))
        grown = await size() - unused
        await store.create_response(US, new_response("b"))
        without = await size()
        assert await finish(store, finished_response("b"))
        assert await size() - without == grown

    async def test_a_new_owner_replaces_the_trace(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        await store.save_trace(LEASE, ODD)
        taken = await store.take_over_run(f"{OWNER}_2", US, "resp_a")
        assert taken is not None
        assert not await store.save_trace(LEASE, b"late")
        assert await store.save_trace(taken.lease, b"new")
        assert await store.get_trace(US, "resp_a") == b"new"
