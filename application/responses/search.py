"""Search for what was said in the responses of a tenant (docs/reference/api.md#list-responses)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from antiphon.application.model.guards.texts import texts_in
from antiphon.application.ports import Clock, FoundResponse, ResponseStore, StorePageQuery
from antiphon.application.support.listing import ListPage
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import NotFound, NotInList, RequestError
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.text_search import TextSearch

MAX_SEARCHED = 10_000
"""Responses in a request: some 100 ms of a store."""

MAX_SEARCH_S = 5.0
"""A request begins no further portion after this time, as those of long responses take longer."""

Show = Callable[[Sequence[ResponseSummary]], Awaitable[Sequence[ResponseSummary]]]


class SearchResponses:
    """Finds responses by words in their own input and output, in the order of a list."""

    def __init__(self, store: ResponseStore, *, steady: Clock = time.monotonic) -> None:
        self._store = store
        self._steady = steady

    async def __call__(
        self,
        tenant: str,
        search: TextSearch,
        query: StorePageQuery,
        *,
        show: Show,
        matches: Callable[[ResponseSummary], bool],
    ) -> ListPage[ResponseSummary]:
        """Return the first `query.limit` that have the words and that match as `show` returns them.

        Raises: RequestError if there is no response `after`, or if the store cannot search.
        """
        stop_at = self._steady() + MAX_SEARCH_S
        found: list[ResponseSummary] = []
        searched, after = 0, query.after
        while True:
            # One more than the page has tells whether there are more.
            limit = query.limit + 1 - len(found)
            try:
                portion = await self._store.search_responses(
                    tenant, search, replace(query, after=after, limit=limit)
                )
            except NotFound:
                raise NotInList(after or "") from None
            if portion is None:
                raise RequestError(
                    "The store of this server cannot search for what was said.",
                    param="search",
                    code="unsupported_parameter",
                )
            checked = [await _with_excerpt(each, search) for each in portion.found]
            shown = await show([each for each in checked if each is not None])
            found += filter(matches, shown)
            searched, after = searched + portion.searched, portion.last_id
            if len(found) > query.limit:
                found = found[: query.limit]
                return _page(found, found[-1].id, searched, has_more=True)
            if portion.is_last or searched >= MAX_SEARCHED or self._steady() > stop_at:
                return _page(found, after, searched, has_more=not portion.is_last)
            await asyncio.sleep(0)  # others have their turn, also if the store never waits


def _page(
    found: list[ResponseSummary], last_id: str | None, searched: int, *, has_more: bool
) -> ListPage[ResponseSummary]:
    return ListPage(items=found, last_id=last_id, has_more=has_more, searched=searched)


async def _with_excerpt(found: FoundResponse, search: TextSearch) -> ResponseSummary | None:
    size = sum(len(memoryview(raw)) for raw in found.items)
    excerpt = await run_in_thread(size, _excerpt, found.items, search)
    return None if excerpt is None else replace(found.response, match=excerpt)


def _excerpt(items: Sequence[Raw], search: TextSearch) -> str | None:
    excerpt = search.excerpt([text for raw in items for text in texts_in(_decode(raw))])
    return excerpt and excerpt.encode(errors="replace").decode()


def _decode(raw: Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A field that nobody reads may have half a surrogate pair.
        return json.loads(bytes(raw).decode(errors="replace"))
