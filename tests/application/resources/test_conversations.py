"""A response claims its conversation, and releases it however it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.errors import ConversationLocked, EngineError, NotFound, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.testing.stores.calls import wait_until

TENANT = "t"


@pytest.fixture
async def house(house: Any) -> Any:
    conversation = Conversation(id="conv_a", created_at=0)
    await house.store.create_conversation(TENANT, conversation)
    return house


async def count_of(house: Any) -> int:
    return len(await house.store.list_conversation_items(TENANT, "conv_a"))


async def is_free(house: Any) -> bool:
    try:
        await house.store.claim_conversation(TENANT, "conv_a", "resp_probe", owner=house.owner)
    except ConversationLocked:
        return False
    await house.store.release_conversation(TENANT, "conv_a", "resp_probe")
    return True


async def test_a_conversation_is_claimed_before_the_first_event_is_stored(house: Any) -> None:
    house.model.played = [[d.TextDelta("Once")], asyncio.Event()]
    created = await house.create(conversation="conv_a", background=True)
    assert not await is_free(house)
    with pytest.raises(ConversationLocked):
        await house.create(conversation="conv_a")
    await house.cancel(TENANT, created.id)
    assert await is_free(house)
    assert await count_of(house) == 2


async def test_the_items_are_stored_before_the_terminal_event_is_sent(house: Any) -> None:
    created = await house.create(conversation="conv_a", store=False)
    async for batch in created.events:
        if isinstance(batch[-1], e.Completed):
            assert await count_of(house) == 2
            await house.store.claim_conversation(TENANT, "conv_a", "resp_next", owner=house.owner)


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("failing", ["create", "finish", "release once", "release heard once"])
async def test_a_store_that_fails_leaves_the_conversation_free(
    house: Any, failing: str, store: bool
) -> None:
    house.store.failing = {failing}
    try:
        response = await house.whole(conversation="conv_a", store=store)
    except StoreError:
        response = None
    failed = response is None or response.status == "failed"
    assert failed == (store and failing in ("create", "finish"))
    house.store.failing.clear()
    assert await is_free(house)
    assert await count_of(house) == (0 if failed else 2)


async def test_a_store_that_keeps_failing_hides_no_error_and_frees_the_conversation_later(
    house: Any,
) -> None:
    house.model.refusal = EngineError("the engine broke")
    house.store.failing = {"release"}
    with pytest.raises(EngineError):
        await house.create(conversation="conv_a")
    assert not await is_free(house)
    house.store.failing.clear()
    await wait_until(lambda: is_free(house))


async def test_a_request_that_is_cancelled_during_the_claim_leaves_the_conversation_free(
    house: Any,
) -> None:
    house.store.claimed = claimed = asyncio.Event()
    creating = asyncio.create_task(house.create(conversation="conv_a"))
    await claimed.wait()
    house.store.claimed = None
    creating.cancel()
    await asyncio.wait([creating])
    assert creating.cancelled()
    assert await is_free(house)


async def test_a_foreign_tenant_finds_nothing(house: Any) -> None:
    await house.store.create_conversation("other", Conversation(id="conv_c", created_at=0))
    with pytest.raises(NotFound) as caught:
        await house.create(conversation="conv_c")
    assert caught.value.param == "conversation"


async def test_a_continued_conversation_needs_no_input(house: Any) -> None:
    await house.whole(conversation="conv_a")
    await house.whole(conversation="conv_a", input=None)
    assert [item.role for item in house.model.turns[-1].items] == ["user", "assistant"]
    assert await count_of(house) == 3
