"""The stores of a database read no more of long items than a page may have."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.contracts.conftest import STORES

from antiphon.application.ports import StorePageQuery
from antiphon.testing.samples import US, finished_response, ids, item, new_response
from antiphon.testing.stores.calls import create_conversation, finish

ITEM_BYTES = len(item("a").raw)
HALF_OF_THREE = ITEM_BYTES * 3 // 2
"""Reached by the second item of a page, which so has a third one."""


@pytest.mark.parametrize("name", [name for name in STORES if name != "memory"])
async def test_a_page_ends_behind_the_first_item_beyond_its_bytes(
    name: str, tmp_path: Path
) -> None:
    async with STORES[name](tmp_path) as new_store:
        store = new_store()
        await store.start()
        try:
            await create_conversation(store, "a", *"abcdef")
            await store.create_response(US, new_response("one", *map(item, "uvw")))
            assert await finish(store, finished_response("one"))
            two = new_response("two", *map(item, "xyz"), after="one")
            await store.create_response(US, two)
            read = partial(store.list_conversation_items, US, "conv_a")
            query = StorePageQuery(limit=50, max_bytes=HALF_OF_THREE)
            backward = StorePageQuery(limit=50, max_bytes=HALF_OF_THREE, is_descending=True)
            assert ids(await read(query)) == ["a", "b", "c"]
            assert ids(await read(backward)) == ["f", "e", "d"]
            assert ids(await read(StorePageQuery(limit=50, max_bytes=1))) == ["a", "b"]
            read_input = partial(store.list_input_items, US, "resp_two")
            assert ids(await read_input(query)) == ["u", "v", "w"]
            assert ids(await read_input(backward)) == ["z", "y", "x"]
            across = StorePageQuery(limit=50, max_bytes=7 * ITEM_BYTES // 2, after="msg_w")
            assert len(await read_input(across)) == 4  # the output of "one", and the input of "two"
        finally:
            await store.aclose()
