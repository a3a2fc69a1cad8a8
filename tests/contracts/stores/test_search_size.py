"""A search reads thousands of responses in few steps, and leaves the event loop to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec import structs

from antiphon.application.ports import FoundPage, Store, StorePageQuery
from antiphon.domain.items import Message
from antiphon.domain.responses.text_search import TextSearch, search_of
from antiphon.testing.samples import US, finished_response, new_response
from antiphon.testing.stores.search import said

pytestmark = pytest.mark.slow

RESPONSES = 10_000
AGO = 4_000
AT_ONCE = 200
MAX_STEPS = 60
MAX_LOOP_S = 1.5
"""CPU time of the event loop's thread, some ten times of what it takes on a desktop."""

WORDS = "the quick brown fox jumps over the lazy dog and goes on to say something else " * 8


@pytest.fixture
async def store(new_store: Callable[[], Store]) -> AsyncIterator[Store]:
    store = new_store()
    await store.start()
    yield store
    await store.aclose()


async def fill(store: Store) -> None:
    for start in range(0, RESPONSES, AT_ONCE):
        await asyncio.gather(*(create(store, n) for n in range(start, start + AT_ONCE)))


async def create(store: Store, number: int) -> None:
    word = "Zanzibar" if number == RESPONSES - AGO else "Somewhere"
    answer = Message(id=f"msg_{number}_out", role="assistant", content=WORDS)
    response = finished_response(str(number), output=(answer,))
    new = new_response(str(number), said(f"{number}_in", f"Where is {word}?"))
    await store.create_response(US, structs.replace(new, response=response))


async def search_all(store: Store, search: TextSearch) -> list[FoundPage]:
    pages: list[FoundPage] = []
    while not pages or not pages[-1].is_last:
        after = pages[-1].last_id if pages else None
        query = StorePageQuery(limit=21, after=after, is_descending=True)
        page = await store.search_responses(US, search, query)
        assert page is not None
        pages.append(page)
    return pages


@pytest.mark.timeout(300)
async def test_a_word_that_was_said_long_ago_is_found(store: Store) -> None:
    await fill(store)
    for words in ("zanzibar", "user", "нигде", "zanzibar where"):
        search = search_of(words)
        assert search is not None
        started = time.thread_time()
        pages = await search_all(store, search)
        assert time.thread_time() - started < MAX_LOOP_S
        assert sum(page.searched for page in pages) == RESPONSES
        assert len(pages) <= MAX_STEPS
        found = [each.response.id for page in pages for each in page.found]
        assert found == ([f"resp_{RESPONSES - AGO}"] if "zanzibar" in words else [])
