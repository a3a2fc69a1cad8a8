"""Read a thread: the responses before a response, those after it, and the forks between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import StorePageQuery
from antiphon.application.responses.get import GetResponse
from antiphon.application.responses.list import ListResponses
from antiphon.domain.errors import NotFound
from antiphon.domain.responses.response_lists import ResponseSummary, summary_of

MAX_BEFORE = 200
"""Responses of the chain that are read, one by one. More of them are another thread to open."""
MAX_SEARCHED = 2000
"""Entries of the list that are read in each direction, to find what continues the chain."""
READ_AT_ONCE = 50


class Thread(Struct, frozen=True, kw_only=True):
    """The responses in the order of their creation.

    The first one continues `earlier`, which is not among them, or `deleted`, which is gone; both
    are None if it begins the thread. `searched` entries of the list were read to find forks and
    followers; if it `has_more`, there may be others.
    """

    data: list[ResponseSummary]
    earlier: str | None
    deleted: str | None
    searched: int
    has_more: bool


class ReadThread:
    """Finds what continues a response in the list, as no store has an index of it."""

    def __init__(self, get: GetResponse, list_responses: ListResponses) -> None:
        self._get = get
        self._list = list_responses

    async def __call__(self, tenant: str, response_id: str) -> Thread:
        """Raises: NotFound."""
        response = await self._get(tenant, response_id)
        chain = [summary_of(response)]
        deleted = None
        while (earlier := chain[0].previous_response_id) and len(chain) <= MAX_BEFORE:
            try:
                chain.insert(0, summary_of(await self._get(tenant, earlier)))
            except NotFound:
                earlier, deleted = None, earlier
                break
        older: list[ResponseSummary] = []
        newer, has_more = await self._search(tenant, response_id)
        if len(chain) > 1:
            found, has_older = await self._search(tenant, response_id, back_to=chain[0].id)
            older, has_more = found[::-1], has_more or has_older
        thread = _connected(chain, [*older, chain[-1], *newer])
        return Thread(
            data=thread,
            earlier=earlier or None,
            deleted=deleted,
            searched=len(older) + len(newer),
            has_more=has_more,
        )

    async def _search(
        self, tenant: str, after: str, *, back_to: str | None = None
    ) -> tuple[list[ResponseSummary], bool]:
        """Return the responses of the list after one, or those before it back to another, and
        whether there are more than were read.
        """
        query = StorePageQuery(after=after, limit=READ_AT_ONCE, is_descending=back_to is not None)
        read: list[ResponseSummary] = []
        while True:
            try:
                page = await self._list.read_page(tenant, query)
            except NotFound:
                return read, True  # the response before the page was deleted meanwhile
            for each in page:
                read.append(each)
                if each.id == back_to:
                    return read, False
            if len(page) < query.limit:
                return read, False
            if len(read) >= MAX_SEARCHED:
                return read, True
            query = replace(query, after=page[-1].id)
            await asyncio.sleep(0)  # others have their turn, also if the store never waits


def _connected(
    chain: Sequence[ResponseSummary], listed: Sequence[ResponseSummary]
) -> list[ResponseSummary]:
    """Return the chain and what continues it, in the order of the list, the oldest first."""
    thread = {each.id for each in chain}
    in_list = {each.id for each in listed}
    found = [each for each in chain if each.id not in in_list]
    for each in listed:
        # Whatever continues a response is behind it in the list.
        if each.id in thread or each.previous_response_id in thread:
            thread.add(each.id)
            found.append(each)
    return found
