"""Read, list and delete what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from antiphon.application.ports import EventLog, ResponseStore, StoredItem
from antiphon.application.run_response import STOPPED
from antiphon.application.runs import Runs
from antiphon.domain.errors import RequestError
from antiphon.domain.response import TERMINAL, Response

Order = Literal["asc", "desc"]


class GetResponse:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self, tenant: str, response_id: str) -> Response:
        """Raises: NotFound."""
        return await self._store.get(tenant, response_id)


class DeleteResponse:
    def __init__(self, store: ResponseStore, log: EventLog, runs: Runs) -> None:
        self._store = store
        self._log = log
        self._runs = runs

    async def __call__(self, tenant: str, response_id: str) -> None:
        """Stop the response if it runs, then forget it. Raises: NotFound."""
        await self._store.get(tenant, response_id)  # whose it is comes first
        await self._runs.cancel(response_id)
        await self._store.delete(tenant, response_id)
        await self._log.drop(response_id)


class CancelResponse:
    """`POST /v1/responses/{id}/cancel` (api_surface 7.6)."""

    def __init__(self, store: ResponseStore, runs: Runs) -> None:
        self._store = store
        self._runs = runs

    async def __call__(self, tenant: str, response_id: str) -> Response:
        """Return the cancelled response. Raises: NotFound; RequestError if it is over."""
        response = await self._store.get(tenant, response_id)
        if not response.background:
            raise RequestError("Cannot cancel a synchronous response.")
        if response.status not in TERMINAL:
            await self._runs.cancel(response_id)
            response = await self._store.get(tenant, response_id)
        if response.status != "cancelled":
            raise RequestError(f"Cannot cancel a {response.status} response.")
        return response


class Page(Struct, frozen=True, kw_only=True):
    """A part of a list (api_surface 1.4)."""

    items: Sequence[StoredItem]
    has_more: bool


class ListInputItems:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(
        self, tenant: str, response_id: str, *, after: str | None, limit: int, order: Order
    ) -> Page:
        """Return up to `limit` items that follow `after`. Raises: NotFound; RequestError."""
        items = await self._store.input_items(tenant, response_id)
        if order == "desc":
            items = items[::-1]
        start = 0 if after is None else self._position(items, after) + 1
        chosen = items[start : start + limit]
        return Page(items=chosen, has_more=start + limit < len(items))

    def _position(self, items: Sequence[StoredItem], item_id: str) -> int:
        for position, item in enumerate(items):
            if item.id == item_id:
                return position
        raise RequestError(
            f"Item with id {item_id[:100]!r} not found.", param="after", code="invalid_value"
        )


class RecoverResponses:
    """At the start: what another life of this server left unfinished has failed."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self) -> int:
        """Return how many responses were found unfinished."""
        unfinished = await self._store.unfinished()
        for tenant, response in unfinished:
            await self._store.finish(tenant, response.failed(STOPPED))
        return len(unfinished)
