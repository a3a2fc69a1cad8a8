"""Continuing what no store keeps: the caller remembers it, and everything else is as ever."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from antiphon.application.responses.start import AcceptedResponse
from antiphon.application.support.paging import PageQuery
from antiphon.domain.decoding import decode_request
from antiphon.domain.errors import RequestError

TENANT = "t"


async def create(house: Any, remembered: Any, **fields: Any) -> AcceptedResponse:
    """Create a response as a connection does, and read it to its end."""
    body = json.dumps({"model": "m", "input": "hi", **fields}).encode()
    created: AcceptedResponse = await house.create_response(
        decode_request(body).request, tenant=TENANT, remembered=remembered
    )
    async for _ in created.events:
        pass
    return created


def texts(raws: Any) -> list[str]:
    contents = [msgspec.json.decode(item.raw)["content"] for item in raws]
    return [part["text"] for content in contents for part in content]


async def test_an_unstored_chain_is_what_the_model_is_given(house: Any) -> None:
    remembered: dict[str, Any] = {}
    for text in ("one", "two", "three"):
        parent = next(reversed(remembered), None)
        created = await create(
            house, remembered, store=False, input=text, previous_response_id=parent
        )
        remembered = {created.id: created.conversation()}
    assert texts(*remembered.values()) == ["one", "Hello", "two", "Hello", "three", "Hello"]
    assert len(house.model.turns[-1].items) == 5


async def test_what_is_remembered_is_what_the_store_keeps(house: Any) -> None:
    stored = await create(house, {})
    kept = await house.store.context(TENANT, stored.id)
    unstored = await create(house, {}, store=False)
    for one, other in zip(kept, unstored.conversation(), strict=True):
        mine, its = msgspec.json.decode(one.raw), msgspec.json.decode(other.raw)
        assert mine.pop("id") == one.id
        assert its.pop("id") == other.id
        assert mine == its


async def test_a_stored_parent_is_part_of_what_is_remembered(house: Any) -> None:
    parent = await create(house, {}, input="one")
    child = await create(house, {}, store=False, input="two", previous_response_id=parent.id)
    assert texts(child.conversation()) == ["one", "Hello", "two", "Hello"]


async def test_a_stored_child_keeps_what_no_store_had(house: Any) -> None:
    parent = await create(house, {}, store=False, input="one")
    child = await create(
        house, {parent.id: parent.conversation()}, input="two", previous_response_id=parent.id
    )
    kept = await house.store.context(TENANT, child.id)
    assert texts(kept) == ["one", "Hello", "two", "Hello"]
    listed = await house.input_items(TENANT, child.id, PageQuery(order="asc"))
    assert texts(listed.items) == ["one", "Hello", "two"]


async def test_what_is_not_remembered_is_not_found(house: Any) -> None:
    parent = await create(house, {}, store=False)
    with pytest.raises(RequestError) as refused:
        await create(house, {}, previous_response_id=parent.id)
    assert refused.value.code == "previous_response_not_found"


async def test_nothing_is_kept_for_a_caller_who_remembers_nothing(house: Any) -> None:
    assert (await house.create(store=False)).shown_items == ()


async def test_a_remembered_item_can_be_named(house: Any) -> None:
    parent = await create(house, {}, store=False, input="one")
    remembered = {parent.id: parent.conversation()}
    reference = {"type": "item_reference", "id": remembered[parent.id][0].id}
    child = await create(house, remembered, store=False, input=[reference])
    assert texts(child.conversation()) == ["one", "Hello"]
    with pytest.raises(RequestError):
        await create(house, {}, store=False, input=[reference])
