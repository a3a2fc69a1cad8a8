"""Filtered lists read a limited number of entries at a time, and lose none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import Raw, Struct

from antiphon.application.ports import StoredItem, StorePageQuery
from antiphon.application.support.listing import (
    MAX_READ,
    PAGE_BYTES,
    READ_AT_ONCE,
    list_matching,
    read_items,
)
from antiphon.domain.errors import NotFound, RequestError


class Entry(Struct, frozen=True):
    id: str


ENTRIES = [Entry(str(number)) for number in range(2 * MAX_READ + 50)]
READS: list[int] = []


async def read(query: StorePageQuery) -> Sequence[Entry]:
    READS.append(query.limit)
    start = 0 if query.after is None else int(query.after) + 1
    if start > len(ENTRIES):
        raise NotFound("no")
    return ENTRIES[start : start + query.limit]


async def all_pages(limit: int, wanted: set[str]) -> list[list[str]]:
    pages, after = [], None
    while True:
        query = StorePageQuery(limit=limit, after=after)
        page = await list_matching(read, query, lambda entry: entry.id in wanted)
        pages.append([entry.id for entry in page.items])
        if not page.has_more:
            return pages
        after = page.last_id


async def test_a_rare_find_takes_several_pages() -> None:
    READS.clear()
    rare = {"0", str(MAX_READ), str(len(ENTRIES) - 1)}
    assert await all_pages(20, rare) == [["0"], [str(MAX_READ)], [str(len(ENTRIES) - 1)]]
    assert max(READS) == READ_AT_ONCE


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_each_entry_is_on_exactly_one_page(limit: int) -> None:
    wanted = {str(number) for number in range(0, len(ENTRIES), 13)}
    found = [each for page in await all_pages(limit, wanted) for each in page]
    assert found == sorted(wanted, key=int)


async def test_a_full_page_that_ends_the_list_has_nothing_more() -> None:
    last = {ENTRIES[-2].id, ENTRIES[-1].id}
    query = StorePageQuery(limit=2, after=ENTRIES[-10].id)
    page = await list_matching(read, query, lambda entry: entry.id in last)
    assert (len(page.items), page.has_more, page.last_id) == (2, False, ENTRIES[-1].id)
    assert page.searched == 9


async def test_a_page_says_how_many_entries_were_read_for_it() -> None:
    page = await list_matching(read, StorePageQuery(limit=20), lambda _: False)
    assert (page.items, page.has_more, page.searched) == ([], True, MAX_READ)


async def test_an_unknown_start_is_an_error_of_the_request() -> None:
    query = StorePageQuery(limit=2, after=str(10 * len(ENTRIES)))
    with pytest.raises(RequestError) as raised:
        await list_matching(read, query, lambda _: True)
    assert raised.value.param == "after"


@pytest.mark.parametrize(
    ("sizes", "limit", "count", "has_more"),
    [
        ([1, 1, 1], 2, 2, True),
        ([1, 1], 2, 2, False),
        ([PAGE_BYTES // 2] * 4, 100, 2, True),
        ([PAGE_BYTES // 2] * 2, 100, 2, False),
        ([1, PAGE_BYTES], 100, 1, True),
        ([3 * PAGE_BYTES, 1], 100, 1, True),
        ([3 * PAGE_BYTES], 100, 1, False),
        ([], 5, 0, False),
    ],
)
async def test_a_page_of_long_items_ends_early(
    sizes: list[int], limit: int, count: int, has_more: bool
) -> None:
    items = [StoredItem(id=str(number), raw=Raw(b" " * size)) for number, size in enumerate(sizes)]

    async def read_all(query: StorePageQuery) -> Sequence[StoredItem]:
        return items[: query.limit]

    page = await read_items(read_all, StorePageQuery(limit=limit))
    assert (page.items, page.has_more) == (items[:count], has_more)
