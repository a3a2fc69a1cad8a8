"""Read, list and delete what is stored."""

from __future__ import annotations

from antiphon.application.paging import Cut, Page
from antiphon.application.ports import EventLog, ResponseStore
from antiphon.application.run_response import STOPPED
from antiphon.application.runs import Runs
from antiphon.domain.errors import RequestError
from antiphon.domain.response import TERMINAL, Response


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


class ListInputItems:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self, tenant: str, response_id: str, cut: Cut) -> Page:
        """Raises: NotFound; RequestError."""
        return cut.of(await self._store.input_items(tenant, response_id))


class RecoverResponses:
    """At the start: what another life of this server left unfinished has failed, and holds no
    conversation any more."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(self) -> int:
        """Return how many responses were found unfinished."""
        unfinished = await self._store.unfinished()
        for tenant, response in unfinished:
            await self._store.finish(tenant, response.failed(STOPPED))
        for claim in await self._store.claims():  # of responses that were not to be kept
            await self._store.release(claim.tenant, claim.conversation_id, claim.response_id)
        return len(unfinished)
