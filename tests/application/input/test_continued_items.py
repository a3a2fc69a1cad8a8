"""Continuing unstored responses, which the caller remembers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.application.ports import StorePageQuery
from antiphon.application.responses.start import AcceptedResponse
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import RequestError

TENANT = "t"
CALLER = Caller(tenant=TENANT)


async def create(house: Any, remembered: Any, **fields: Any) -> AcceptedResponse:
    """Create a response as a connection does, and read it to its end."""
    options = {"remembered": remembered, "body": None}
    created: AcceptedResponse = await house.create_response(
        house.submission(CALLER, options=options, **fields)
    )
    async for _ in created.events:
        pass
    return created


def texts(raws: Any) -> list[str]:
    contents = [msgspec.json.decode(item.raw)["content"] for item in raws]
    return [part["text"] for content in contents for part in content]


async def test_the_model_is_shown_the_whole_unstored_chain(house: Any) -> None:
    remembered: dict[str, Any] = {}
    for text in ("one", "two", "three"):
        parent = next(reversed(remembered), None)
        created = await create(
            house, remembered, store=False, input=text, previous_response_id=parent
        )
        remembered = {created.id: created.conversation()}
    assert texts(*remembered.values()) == ["one", "Hello", "two", "Hello", "three", "Hello"]
    assert len(house.model.turns[-1].items) == 5


async def test_the_caller_remembers_the_items_that_a_store_would_have(house: Any) -> None:
    stored = await create(house, {})
    stored_items = await house.store.get_context(TENANT, stored.id)
    unstored = await create(house, {}, store=False)
    for one, other in zip(stored_items, unstored.conversation(), strict=True):
        mine, its = msgspec.json.decode(one.raw), msgspec.json.decode(other.raw)
        assert mine.pop("id") == one.id
        assert its.pop("id") == other.id
        assert mine == its


async def test_the_remembered_items_include_those_of_a_stored_parent(house: Any) -> None:
    parent = await create(house, {}, input="one")
    child = await create(house, {}, store=False, input="two", previous_response_id=parent.id)
    assert texts(child.conversation()) == ["one", "Hello", "two", "Hello"]


async def test_a_stored_child_has_the_items_of_its_unstored_parent(house: Any) -> None:
    parent = await create(house, {}, store=False, input="one")
    child = await create(
        house, {parent.id: parent.conversation()}, input="two", previous_response_id=parent.id
    )
    stored_items = await house.store.get_context(TENANT, child.id)
    assert texts(stored_items) == ["one", "Hello", "two", "Hello"]
    listed = await house.input_items(TENANT, child.id, StorePageQuery(limit=20))
    assert texts(listed.items) == ["one", "Hello", "two"]


async def test_an_unstored_response_that_is_not_remembered_is_not_found(house: Any) -> None:
    parent = await create(house, {}, store=False)
    with pytest.raises(RequestError) as caught:
        await create(house, {}, previous_response_id=parent.id)
    assert caught.value.code == "previous_response_not_found"


async def test_a_caller_that_remembers_nothing_gets_no_items(house: Any) -> None:
    assert (await house.create(store=False)).shown_items == ()


async def test_a_remembered_item_can_be_referenced(house: Any) -> None:
    parent = await create(house, {}, store=False, input="one")
    remembered = {parent.id: parent.conversation()}
    reference = {"type": "item_reference", "id": remembered[parent.id][0].id}
    child = await create(house, remembered, store=False, input=[reference])
    assert texts(child.conversation()) == ["one", "Hello"]
    with pytest.raises(RequestError):
        await create(house, {}, store=False, input=[reference])
