"""Contract tests for a store's conversations."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from antiphon.application.ports import Store, StorePageQuery
from antiphon.domain.errors import NotInList, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import TERMINAL
from antiphon.testing.samples import OWNER, THEM, US, finished_response, item, turn_item_names
from antiphon.testing.stores.calls import (
    beat,
    claim,
    claim_and_create,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    input_of,
    is_locked,
    is_unknown,
    items_of,
    pages_of,
    run_in_conversation,
    wait_until,
)
from antiphon.testing.stores.fixtures import StoreFixtures

FIRST = StorePageQuery(limit=2)


@pytest.mark.asyncio
class ConversationStoreContract(StoreFixtures):
    """The part of StoreContract about conversations."""

    async def test_a_conversation_is_read_as_it_was_written(self, store: Store) -> None:
        await create_conversation(store, "a", "x", "y")
        conversation = await store.get_conversation(US, "conv_a")
        assert conversation == Conversation(id="conv_a", created_at=7, metadata={"k": "é"})
        assert await store.list_conversation_items(US, "conv_a") == [item("x"), item("y")]
        assert (await store.get_item(US, "msg_y")) == item("y")

    async def test_metadata_is_replaced(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        updated = await store.update_conversation(US, "conv_a", {"z": "1"})
        assert updated == Conversation(id="conv_a", created_at=7, metadata={"z": "1"})
        assert await store.get_conversation(US, "conv_a") == updated
        assert await items_of(store, "a") == ["x"]

    async def test_a_conversation_id_cannot_be_used_twice(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        with pytest.raises(StoreError):
            await create_conversation(store, "a", "y")
        assert await items_of(store, "a") == ["x"]

    async def test_items_are_added_at_the_end_and_kept_byte_for_byte(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        odd = item("odd", raw=b'{ "type":"new", "unknown": [1.50] }')
        await store.create_conversation_items(US, "conv_a", [odd, item("y")])
        await store.create_conversation_items(US, "conv_a", [])
        await store.create_conversation_items(US, "conv_a", [item("z")])
        assert await items_of(store, "a") == ["x", "odd", "y", "z"]
        assert (await store.list_conversation_items(US, "conv_a"))[1] == odd

    async def test_an_item_is_removed_from_one_conversation(self, store: Store) -> None:
        for name in "ab":
            await create_conversation(store, name, "x", "y", "x")
        await store.delete_conversation_item(US, "conv_a", "msg_x")
        assert await items_of(store, "a") == ["y"]
        assert await items_of(store, "b") == ["x", "y", "x"]
        assert await is_unknown(store.delete_conversation_item(US, "conv_a", "msg_x"))
        await store.create_conversation_items(US, "conv_a", [item("z")])
        assert await items_of(store, "a") == ["y", "z"]

    async def test_the_items_of_a_conversation_are_read_in_pages(self, store: Store) -> None:
        names = [str(number) for number in range(7)]
        await create_conversation(store, "a", *names[:4])
        await run_in_conversation(store, "a", "one")
        await store.create_conversation_items(US, "conv_a", list(map(item, names[4:])))
        await store.delete_conversation_item(US, "conv_a", "msg_2")
        await create_conversation(store, "b", *names)
        whole = await items_of(store, "a")
        assert whole == [*"013", *turn_item_names("one"), *"456"]
        read = partial(store.list_conversation_items, US, "conv_a")
        for limit in (1, 2, 3, 100):
            assert await pages_of(read, limit) == whole
            assert await pages_of(read, limit, is_descending=True) == whole[::-1]

    async def test_a_page_after_an_item_of_another_conversation_is_refused(
        self, store: Store
    ) -> None:
        await create_conversation(store, "a", "x")
        await create_conversation(store, "b", "y")
        for after in ("msg_y", "msg_z", ""):
            with pytest.raises(NotInList):
                await store.list_conversation_items(US, "conv_a", replace(FIRST, after=after))
        assert (
            await store.list_conversation_items(US, "conv_a", replace(FIRST, after="msg_x")) == []
        )

    async def test_one_item_of_a_conversation_is_read(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await create_conversation(store, "b", "y")
        await store.create_conversation_items(
            US, "conv_a", [item("x", raw=b'{"content":"last"}'), item("z")]
        )
        await run_in_conversation(store, "a", "one")
        found = await store.get_conversation_item(US, "conv_a", "msg_x")
        assert found == item("x", raw=b'{"content":"last"}')
        assert (await store.get_conversation_item(US, "conv_a", "msg_one_out")).id == "msg_one_out"
        assert await is_unknown(store.get_conversation_item(US, "conv_a", "msg_y"))
        await store.delete_conversation_item(US, "conv_a", "msg_x")
        assert await is_unknown(store.get_conversation_item(US, "conv_a", "msg_x"))

    async def test_a_deleted_conversation_is_unknown(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await store.delete_conversation(US, "conv_a")
        assert await self.is_unknown_everywhere(store, US, "a")
        assert await is_unknown(store.get_item(US, "msg_x"))

    async def is_unknown_everywhere(self, store: Store, tenant: str, name: str) -> bool:
        conversation_id = f"conv_{name}"
        return all(
            [
                await is_unknown(store.get_conversation(tenant, conversation_id)),
                await is_unknown(store.update_conversation(tenant, conversation_id, {})),
                await is_unknown(store.list_conversation_items(tenant, conversation_id)),
                await is_unknown(store.list_conversation_items(tenant, conversation_id, FIRST)),
                await is_unknown(store.get_conversation_item(tenant, conversation_id, "msg_x")),
                await is_unknown(
                    store.create_conversation_items(tenant, conversation_id, [item("new")])
                ),
                await is_unknown(store.delete_conversation_item(tenant, conversation_id, "msg_x")),
                await is_unknown(claim(store, name, "new", tenant=tenant)),
                await is_unknown(store.delete_conversation(tenant, conversation_id)),
            ]
        )

    async def test_a_response_adds_its_items_to_its_conversation(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await claim_and_create(store, "a", "one")
        assert await items_of(store, "a") == ["x"]
        assert await finish(store, finished_response("one", within="a"))
        await run_in_conversation(store, "a", "two")
        assert await items_of(store, "a") == ["x", *turn_item_names("one", "two")]
        await claim(store, "a", "three")

    async def test_a_response_keeps_the_input_that_its_conversation_had_then(
        self, store: Store
    ) -> None:
        await create_conversation(store, "a", "x")
        for name in ("one", "two"):
            await run_in_conversation(store, "a", name)
        await store.create_conversation_items(US, "conv_a", [item("later")])
        assert await input_of(store, "one") == ["x", "one_in"]
        assert await input_of(store, "two") == ["x", *turn_item_names("one"), "two_in"]
        assert await context_of(store, "two") == ["x", *turn_item_names("one", "two")]
        await create_and_finish(store, "next", after="two")
        assert await context_of(store, "next") == ["x", *turn_item_names("one", "two", "next")]

    async def test_items_that_come_after_a_removed_one_join_no_earlier_input(
        self, store: Store
    ) -> None:
        await create_conversation(store, "a", "x", "y")
        await run_in_conversation(store, "a", "one")
        for name in ("y", "one_in", "one_out"):
            await store.delete_conversation_item(US, "conv_a", f"msg_{name}")
        await store.create_conversation_items(US, "conv_a", [item("later")])
        assert await items_of(store, "a") == ["x", "later"]
        assert await input_of(store, "one") == ["x", "one_in"]

    @pytest.mark.parametrize("last", sorted(TERMINAL))
    async def test_only_a_failed_response_adds_nothing_to_its_conversation(
        self, store: Store, last: str
    ) -> None:
        await create_conversation(store, "a")
        await claim_and_create(store, "a", "one")
        assert await finish(store, finished_response("one", within="a", status=last))
        assert await items_of(store, "a") == ([] if last == "failed" else turn_item_names("one"))
        await claim(store, "a", "two")

    async def test_a_response_that_is_not_stored_adds_its_items_too(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await claim(store, "a", "one")
        await store.release_conversation(US, "conv_a", "resp_one", [item("in"), item("out")])
        assert await items_of(store, "a") == ["x", "in", "out"]
        assert (await store.get_item(US, "msg_out")).id == "msg_out"
        await run_in_conversation(store, "a", "two")
        assert await input_of(store, "two") == ["x", "in", "out", "two_in"]

    async def test_a_conversation_runs_one_response_at_a_time(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await claim(store, "a", "one")
        assert await is_locked(claim(store, "a", "two"))
        assert await is_locked(store.create_conversation_items(US, "conv_a", [item("y")]))
        await store.release_conversation(US, "conv_a", "resp_two", [item("z")])
        assert await is_locked(claim(store, "a", "two"))
        await store.release_conversation(US, "conv_a", "resp_one")
        await store.release_conversation(US, "conv_a", "resp_one", [item("again")])
        assert await items_of(store, "a") == ["x"]
        await claim(store, "a", "two")

    async def test_one_of_many_claims_of_a_conversation_succeeds(
        self, store: Store, another: Store
    ) -> None:
        await create_conversation(store, "a")
        names = [str(number) for number in range(20)]
        stores = [store, another] * 10
        claims = [claim(one, "a", name) for one, name in zip(stores, names, strict=True)]
        refused = await asyncio.gather(*map(is_locked, claims))
        assert refused.count(False) == 1
        holder = names[refused.index(False)]
        await store.release_conversation(US, "conv_a", f"resp_{holder}", [item("left")])
        assert await items_of(store, "a") == ["left"]

    async def test_a_claimed_conversation_can_be_deleted(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await claim_and_create(store, "a", "one")
        await store.delete_conversation(US, "conv_a")
        assert await finish(store, finished_response("one", within="a"))
        await store.release_conversation(US, "conv_a", "resp_one", [item("z")])
        assert await self.is_unknown_everywhere(store, US, "a")
        assert await context_of(store, "one") == turn_item_names("one")
        assert await is_unknown(store.get_item(US, "msg_z"))

    async def test_deleting_a_running_response_frees_its_conversation(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await claim_and_create(store, "a", "one")
        await store.delete_response(US, "resp_one")
        await claim(store, "a", "two")
        assert not await finish(store, finished_response("one", within="a"))
        assert await items_of(store, "a") == ["x"]

    async def test_a_conversation_keeps_the_items_of_a_deleted_response(self, store: Store) -> None:
        await create_conversation(store, "a")
        await run_in_conversation(store, "a", "one")
        await run_in_conversation(store, "a", "two")
        await store.delete_response(US, "resp_one")
        assert await items_of(store, "a") == turn_item_names("one", "two")
        assert await input_of(store, "two") == [*turn_item_names("one"), "two_in"]
        assert (await store.get_item(US, "msg_one_in")).id == "msg_one_in"
        await store.delete_conversation_item(US, "conv_a", "msg_one_in")
        assert await is_unknown(store.get_item(US, "msg_one_in"))
        await store.delete_conversation(US, "conv_a")
        assert await is_unknown(store.get_item(US, "msg_one_out"))

    async def test_a_response_keeps_the_items_of_a_deleted_conversation(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await run_in_conversation(store, "a", "one")
        await store.delete_conversation_item(US, "conv_a", "msg_one_in")
        await store.delete_conversation(US, "conv_a")
        assert await context_of(store, "one") == turn_item_names("one")
        assert (await store.get_item(US, "msg_one_in")).id == "msg_one_in"
        await store.delete_response(US, "resp_one")
        for name in turn_item_names("one"):
            assert await is_unknown(store.get_item(US, f"msg_{name}"))

    async def test_the_conversations_of_another_tenant_are_unknown(self, store: Store) -> None:
        await create_conversation(store, "a", "x")
        await claim(store, "a", "one")
        assert await self.is_unknown_everywhere(store, THEM, "a")
        await store.release_conversation(THEM, "conv_a", "resp_one")
        assert await is_locked(claim(store, "a", "two"))
        await create_conversation(store, "a", "y", tenant=THEM)
        await run_in_conversation(store, "a", "one", tenant=THEM)
        assert await items_of(store, "a") == ["x"]
        assert await items_of(store, "a", THEM) == ["y", *turn_item_names("one")]
        await store.delete_conversation(THEM, "conv_a")
        assert await items_of(store, "a") == ["x"]

    async def test_a_claim_for_an_unstored_response_ends_with_its_owner(
        self, store: Store, another: Store
    ) -> None:
        await create_conversation(store, "a")
        await claim(store, "a", "one")
        await store.end_heartbeat(OWNER)
        await another.create_conversation_items(US, "conv_a", [item("x")])
        await claim(another, "a", "two", owner="srv_b")
        assert await is_locked(store.create_conversation_items(US, "conv_a", [item("y")]))
        await store.release_conversation(US, "conv_a", "resp_one", [item("too_late")])
        assert await is_locked(claim(store, "a", "three", owner="srv_c"))
        assert await items_of(store, "a") == ["x"]

    async def test_an_owner_without_a_heartbeat_loses_its_claims(self, store: Store) -> None:
        await create_conversation(store, "a")
        await beat(store, OWNER, ttl_s=0.1)
        await store.claim_conversation(US, "conv_a", "resp_one", owner=OWNER)

        async def is_free() -> bool:
            return not await is_locked(claim(store, "a", "two", owner="srv_b"))

        await wait_until(is_free)

    async def test_a_claim_for_an_unfinished_response_outlives_its_owner(
        self, store: Store, another: Store
    ) -> None:
        await create_conversation(store, "a", "x")
        await claim_and_create(store, "a", "one")
        await store.end_heartbeat(OWNER)
        assert await is_locked(claim(another, "a", "two", owner="srv_b"))
        assert await is_locked(another.create_conversation_items(US, "conv_a", [item("y")]))
        [taken] = await another.lease_runs("srv_b", limit=1)
        assert await another.finish_response(taken.lease, finished_response("one", within="a"))
        assert await items_of(store, "a") == ["x", *turn_item_names("one")]
        await claim(another, "a", "two", owner="srv_b")
