"""Read, list, cancel and delete what is stored."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.application.ports import EventLog, ResponseStore, Store, StoredItem
from antiphon.application.runs.stop import StopRun
from antiphon.application.support.paging import Cut, Page
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.response import TERMINAL, Response

QUEUED_EVENTS = 2
"""`created` and `queued`: what follows them in a log says that the run was begun."""


class GetResponse:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def __call__(self, tenant: str, response_id: str) -> Response:
        """Raises: NotFound."""
        response = await self._store.get(tenant, response_id)
        if response.status == "queued" and await self._has_begun(tenant, response_id):
            return replace(response, status="in_progress")
        return response

    async def _has_begun(self, tenant: str, response_id: str) -> bool:
        # The stored state is written twice, at first and at the end; what is between is in the log.
        try:
            logged = await self._store.events(
                tenant, response_id, after=QUEUED_EVENTS - 1, limit_bytes=1
            )
        except NotFound:
            return False
        return bool(logged.chunks)


class DeleteResponse:
    def __init__(self, store: ResponseStore, log: EventLog, stop_run: StopRun) -> None:
        self._store = store
        self._log = log
        self._stop_run = stop_run

    async def __call__(self, tenant: str, response_id: str) -> None:
        """Stop the response if it runs, then forget it. Raises: NotFound."""
        response = await self._store.get(tenant, response_id)  # whose it is comes first
        if response.status not in TERMINAL:
            await self._stop_run(tenant, response_id)
        await self._store.delete(tenant, response_id)
        await self._log.drop(response_id)


class CancelResponse:
    """`POST /v1/responses/{id}/cancel` (api_surface 7.6)."""

    def __init__(self, store: ResponseStore, stop_run: StopRun) -> None:
        self._store = store
        self._stop_run = stop_run

    async def __call__(self, tenant: str, response_id: str) -> Response:
        """Return the cancelled response. Raises: NotFound; RequestError if it is over."""
        response = await self._store.get(tenant, response_id)
        if not response.background:
            raise RequestError("Cannot cancel a synchronous response.")
        if response.status not in TERMINAL:
            response = await self._stop_run(tenant, response_id)
        if response.status != "cancelled":
            raise RequestError(f"Cannot cancel a {response.status} response.")
        return response


class ListInputItems:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self, tenant: str, response_id: str, cut: Cut) -> Page[StoredItem]:
        """Raises: NotFound; RequestError."""
        return cut.of(await self._store.input_items(tenant, response_id))
