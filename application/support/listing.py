"""Lists of a store, filtered: a request reads a limited number of entries, whatever it finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import StoredItem, StorePageQuery
from antiphon.application.support.paging import HasId, Page
from antiphon.domain.errors import NotFound, NotInList

MAX_READ = 2000
"""Entries that one request reads. A filter that finds few of many needs several requests."""

READ_AT_ONCE = 100

PAGE_BYTES = 8 * 1024 * 1024
"""Of the items on a page, unless it has only one."""

E = TypeVar("E", bound=HasId)

ReadPage = Callable[[StorePageQuery], Awaitable[Sequence[E]]]
"""Reads a page from the store. Raises: NotFound if there is no `after`."""


class ListPage(Struct, Generic[E], frozen=True, kw_only=True):
    """A page of a list. The next one begins after `last_id`, which may not be among the items.

    `searched` entries were read for it, from the first of the page to `last_id`.
    """

    items: list[E]
    last_id: str | None
    has_more: bool
    searched: int = 0


async def read_items(read: ReadPage[StoredItem], query: StorePageQuery) -> Page[StoredItem]:
    """Return the page, which ends before it has PAGE_BYTES, and whether more comes after it.

    Raises: NotInList.
    """
    found = await read(replace(query, limit=query.limit + 1, max_bytes=PAGE_BYTES))
    ends = accumulate(memoryview(item.raw).nbytes for item in found[: query.limit])
    count = max(1, sum(end <= PAGE_BYTES for end in ends))
    return Page(items=found[:count], has_more=len(found) > count)


async def list_matching(
    read: ReadPage[E], query: StorePageQuery, matches: Callable[[E], bool]
) -> ListPage[E]:
    """Return the first `query.limit` entries that match. Raises: RequestError if there is no
    `after`.
    """
    found: list[E] = []
    last_id, count = query.after, 0
    async with aclosing(_read_all(read, query)) as entries:
        async for entry in entries:
            if len(found) == query.limit or count == MAX_READ:
                return ListPage(items=found, last_id=last_id, has_more=True, searched=count)
            count, last_id = count + 1, entry.id
            if matches(entry):
                found.append(entry)
    return ListPage(items=found, last_id=last_id, has_more=False, searched=count)


async def _read_all(read: ReadPage[E], query: StorePageQuery) -> AsyncGenerator[E]:
    # Without a filter, the page and the entry after it are all that is needed.
    query = replace(query, limit=min(query.limit, READ_AT_ONCE) + 1)
    try:
        while page := await read(query):
            for entry in page:
                yield entry
            query = replace(query, after=page[-1].id, limit=READ_AT_ONCE)
            await asyncio.sleep(0)  # others have their turn, also if the store never waits
    except NotFound:
        raise NotInList(query.after or "") from None
