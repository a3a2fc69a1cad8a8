"""List the input items of a response."""

from __future__ import annotations

from antiphon.application.ports import ResponseStore, StoredItem
from antiphon.application.support.paging import Page, PageQuery


class ListInputItems:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(
        self, tenant: str, response_id: str, page_query: PageQuery
    ) -> Page[StoredItem]:
        """Raises: NotFound; RequestError."""
        return page_query.apply(await self._store.input_items(tenant, response_id))
