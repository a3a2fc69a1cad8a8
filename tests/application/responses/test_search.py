"""A search reads a limited number of responses, for a limited time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import StorePageQuery
from antiphon.application.responses.search import MAX_SEARCH_S, MAX_SEARCHED, SearchResponses
from antiphon.application.support.listing import ListPage
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.text_search import TextSearch
from antiphon.testing.samples import US, new_response

NEWEST = StorePageQuery(limit=20, is_descending=True)


@pytest.fixture
async def store() -> MemoryStore:
    """A store with more responses than one request reads."""
    store = MemoryStore(keep=2 * MAX_SEARCHED)
    for number in range(MAX_SEARCHED + 500):
        await store.create_response(US, new_response(str(number)))
    return store


async def search(
    find: SearchResponses, word: str, query: StorePageQuery
) -> ListPage[ResponseSummary]:
    async def show(page: Sequence[ResponseSummary]) -> Sequence[ResponseSummary]:
        return page

    return await find(US, TextSearch((word,)), query, show=show, matches=lambda _: True)


async def test_a_request_reads_some_and_the_next_goes_on(store: MemoryStore) -> None:
    first = await search(SearchResponses(store), "absent", NEWEST)
    assert (first.items, first.has_more, first.searched) == ([], True, MAX_SEARCHED)
    query = StorePageQuery(limit=20, is_descending=True, after=first.last_id)
    rest = await search(SearchResponses(store), "absent", query)
    assert (rest.items, rest.has_more, rest.searched) == ([], False, 500)


async def test_a_request_ends_in_time(store: MemoryStore) -> None:
    ticks = count(0, MAX_SEARCH_S / 2)
    page = await search(SearchResponses(store, steady=lambda: next(ticks)), "absent", NEWEST)
    assert page.has_more
    assert 0 < page.searched < MAX_SEARCHED


async def test_a_full_page_ends_the_search(store: MemoryStore) -> None:
    page = await search(SearchResponses(store), "hi", NEWEST)
    assert len(page.items) == 20
    assert page.has_more
    assert page.searched == 21
