"""A history that is kept is the one that the store has, whatever else happened to the chain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.input.history import LoadHistory
from antiphon.application.input.known_contexts import KnownContexts
from antiphon.application.ports import StoredItem
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.history.conversation import Entry
from antiphon.domain.requests.decoding import decode_request
from antiphon.domain.responses.response import Response
from antiphon.testing.samples import THEM, US
from antiphon.testing.stores.calls import (
    create_and_finish,
    create_conversation,
    run_in_conversation,
)


class CountingStore(MemoryStore):
    """A store that counts the items and the responses that it hands over."""

    def __init__(self) -> None:
        super().__init__()
        self.items_read = self.responses_read = 0

    async def get_response(self, *args: Any) -> Response:
        self.responses_read += 1
        return await super().get_response(*args)

    async def get_context(self, *args: Any) -> list[StoredItem]:
        return self._counted(await super().get_context(*args))

    async def list_input_items(self, *args: Any) -> list[StoredItem]:
        return self._counted(await super().list_input_items(*args))

    def _counted(self, items: list[StoredItem]) -> list[StoredItem]:
        self.items_read += len(items)
        return items


async def load(load_history: LoadHistory, name: str, tenant: str = US) -> Sequence[Entry] | str:
    """Return the history of the response `resp_…`, or the code of the error."""
    body = msgspec.json.encode({"model": "m", "previous_response_id": f"resp_{name}"})
    request = decode_request(body).request
    try:
        return list(await load_history(request, tenant=tenant, remembered={}))
    except RequestError as error:
        return error.code or ""


async def test_the_next_turn_reads_only_what_is_new() -> None:
    store = CountingStore()
    load_history, parent = LoadHistory(store), None
    counts = []
    for number in range(10):
        await create_and_finish(store, str(number), after=parent)
        before = store.items_read
        assert len(await load(load_history, str(number))) == 2 * (number + 1)
        counts.append(store.items_read - before)
        parent = str(number)
    assert counts == [2, *[1] * 9]  # the output comes with the response
    before = store.items_read
    assert len(await load(load_history, "9")) == 20
    assert store.items_read == before


async def test_tenants_share_no_history() -> None:
    store = MemoryStore()
    load_history = LoadHistory(store)
    await create_and_finish(store, "a")
    assert len(await load(load_history, "a")) == 2
    assert await load(load_history, "a", THEM) == "previous_response_not_found"


async def test_a_history_too_large_to_keep_is_read_each_time() -> None:
    store = CountingStore()
    load_history = LoadHistory(store, KnownContexts(max_bytes=1000))
    await create_and_finish(store, "a")
    for _ in range(2):
        assert len(await load(load_history, "a")) == 2
    assert store.items_read == 4


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("begin", "converse", "continue", "continue", "delete", "forget", "load")),
        st.integers(0, 11),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_kept_history_is_always_the_stores(steps: list[tuple[str, int]]) -> None:
    asyncio.run(follow(steps))


async def follow(steps: list[tuple[str, int]]) -> None:
    """Make, continue and delete responses; each history is the one that a fresh server reads."""
    store = MemoryStore()
    await create_conversation(store, "c", "c0", "c1", "c2", "c3")
    load_history, made = LoadHistory(store), ["none"]
    for step, number in steps:
        chosen, name = made[number % len(made)], str(len(made))
        match step:
            case "begin":
                await create_and_finish(store, name)
                made.append(name)
            case "converse":
                await run_in_conversation(store, "c", name)
                made.append(name)
            case "continue":
                if await load(load_history, chosen) != "previous_response_not_found":
                    await create_and_finish(store, name, after=chosen)
                    made.append(name)
            case "delete":
                await _unless_missing(store.delete_response(US, f"resp_{chosen}"))
            case "forget":
                deleted = store.delete_conversation_item(US, "conv_c", f"msg_c{number % 4}")
                await _unless_missing(deleted)
        assert await load(load_history, chosen) == await load(LoadHistory(store), chosen)


async def _unless_missing(work: Any) -> None:
    with suppress(NotFound):
        await work


async def test_a_chain_that_may_not_be_kept_is_looked_through_once() -> None:
    store = CountingStore()
    load_history, parent = LoadHistory(store), None
    for number in range(10):
        await create_and_finish(store, str(number), after=parent)
        parent = str(number)
    await store.delete_response(US, "resp_0")
    looks = []
    for number in range(10, 14):
        before = store.responses_read
        assert len(await load(load_history, str(number - 1))) == 2 * number
        looks.append(store.responses_read - before)
        await create_and_finish(store, str(number), after=str(number - 1))
    assert looks == [10, 1, 1, 1], "the response that goes on, and once all before it"
