"""List the input items of a response."""

from __future__ import annotations

from functools import partial

from antiphon.application.ports import ResponseStore, StoredItem, StorePageQuery
from antiphon.application.support.listing import read_items
from antiphon.application.support.paging import Page


class ListInputItems:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(
        self, tenant: str, response_id: str, query: StorePageQuery
    ) -> Page[StoredItem]:
        """Raises: NotFound; NotInList."""
        return await read_items(partial(self._store.list_input_items, tenant, response_id), query)
