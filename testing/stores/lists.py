"""Contract tests for a store's lists of responses and conversations."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.application.ports import NewRun, Store, StorePageQuery
from antiphon.domain.errors import NotFound
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.metrics import ResponseMetrics
from antiphon.domain.responses.response import Failure
from antiphon.testing.samples import OWNER, THEM, US, finished_response, new_response
from antiphon.testing.stores.calls import create_and_finish, create_conversation, finish
from antiphon.testing.stores.fixtures import StoreFixtures

LONG = "x" * 200_000


async def listed(store: Store, tenant: str = US, **query: Any) -> list[str]:
    """Return the ids of a page of responses."""
    page = await store.list_responses(tenant, StorePageQuery(**{"limit": 100, **query}))
    return [response.id for response in page]


async def listed_conversations(store: Store, tenant: str = US, **query: Any) -> list[str]:
    page = await store.list_conversations(tenant, StorePageQuery(**{"limit": 100, **query}))
    return [conversation.id for conversation in page]


@pytest.mark.asyncio
class ListStoreContract(StoreFixtures):
    """The part of StoreContract about lists."""

    async def test_responses_are_listed_by_when_they_were_created(self, store: Store) -> None:
        for name in "cab":
            await store.create_response(US, new_response(name))
        assert await listed(store) == ["resp_c", "resp_a", "resp_b"]
        assert await listed(store, is_descending=True) == ["resp_b", "resp_a", "resp_c"]

    async def test_a_page_goes_on_after_a_response(self, store: Store) -> None:
        for name in "abcde":
            await store.create_response(US, new_response(name))
        assert await listed(store, limit=2) == ["resp_a", "resp_b"]
        assert await listed(store, limit=2, after="resp_b") == ["resp_c", "resp_d"]
        assert await listed(store, after="resp_e") == []
        back = await listed(store, limit=3, after="resp_d", is_descending=True)
        assert back == ["resp_c", "resp_b", "resp_a"]

    async def test_new_responses_do_not_move_the_pages(self, store: Store) -> None:
        for name in "abc":
            await store.create_response(US, new_response(name))
        newest = await listed(store, limit=1, is_descending=True)
        await store.create_response(US, new_response("d"))
        older = await listed(store, after=newest[0], is_descending=True)
        assert [*newest, *older] == ["resp_c", "resp_b", "resp_a"]

    async def test_a_tenant_sees_only_its_own_responses(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        await store.create_response(THEM, new_response("a"))
        await store.create_response(THEM, new_response("b"))
        assert await listed(store) == ["resp_a"]
        assert await listed(store, THEM) == ["resp_a", "resp_b"]
        assert await listed(store, "nobody") == []
        with pytest.raises(NotFound):
            await listed(store, after="resp_b")

    async def test_a_page_after_nothing_that_is_there_is_an_error(self, store: Store) -> None:
        for after in ("resp_x", "", "a\x00b", "%", "é" * 1000):
            with pytest.raises(NotFound):
                await listed(store, after=after)
            with pytest.raises(NotFound):
                await listed_conversations(store, after=after)

    async def test_a_deleted_response_is_not_listed(self, store: Store) -> None:
        await create_and_finish(store, "a")
        await create_and_finish(store, "b", after="resp_a")
        await store.create_response(US, new_response("c"))
        await store.delete_response(US, "resp_a")
        await store.delete_response(US, "resp_c")
        assert await listed(store) == ["resp_b"]

    async def test_a_list_shows_the_state_of_each_response(self, store: Store) -> None:
        metrics = ResponseMetrics(received_at=5.0, key_name="mine")
        changes: Any = {"metadata": {"n": "1"}, "metrics": metrics}
        await store.create_response(US, new_response("a", run=NewRun(owner=OWNER), **changes))
        [created] = await store.list_responses(US, StorePageQuery(limit=1))
        assert created.metrics == metrics
        failure = Failure(code="server_error", message="no")
        done = finished_response("a", status="failed", error=failure, **changes)
        assert await finish(store, done)
        [shown] = await store.list_responses(US, StorePageQuery(limit=1))
        assert (shown.id, shown.status, shown.error) == ("resp_a", "failed", failure)
        assert (shown.metadata, shown.metrics) == ({"n": "1"}, metrics)
        assert (shown.model, shown.created_at) == (done.model, done.created_at)

    async def test_long_responses_are_listed_in_their_places(self, store: Store) -> None:
        await store.create_response(US, new_response("a", instructions=LONG))
        await store.create_response(US, new_response("b"))
        await store.create_response(US, new_response("c", instructions=LONG))
        assert await listed(store) == ["resp_a", "resp_b", "resp_c"]

    async def test_conversations_are_listed_by_when_they_were_created(self, store: Store) -> None:
        for name in "cab":
            await create_conversation(store, name)
        await create_conversation(store, "d", tenant=THEM)
        assert await listed_conversations(store) == ["conv_c", "conv_a", "conv_b"]
        newest = await listed_conversations(store, limit=2, is_descending=True)
        assert newest == ["conv_b", "conv_a"]
        assert await listed_conversations(store, after="conv_c", limit=1) == ["conv_a"]
        with pytest.raises(NotFound):
            await listed_conversations(store, after="conv_d")

    async def test_a_listed_conversation_has_its_metadata(self, store: Store) -> None:
        conversation = Conversation(id="conv_a", created_at=7, metadata={"n": "1"})
        await store.create_conversation(US, conversation)
        assert await store.list_conversations(US, StorePageQuery(limit=1)) == [conversation]
        await store.update_conversation(US, "conv_a", {"n": "2"})
        [updated] = await store.list_conversations(US, StorePageQuery(limit=1))
        assert updated.metadata == {"n": "2"}

    async def test_a_deleted_conversation_is_not_listed(self, store: Store) -> None:
        await create_conversation(store, "a")
        await create_conversation(store, "b")
        await store.delete_conversation(US, "conv_a")
        assert await listed_conversations(store) == ["conv_b"]
