"""Cancel a background response."""

from __future__ import annotations

from antiphon.application.ports import ResponseStore
from antiphon.application.runs.stop import StopRun
from antiphon.domain.errors import RequestError
from antiphon.domain.responses.response import TERMINAL, Response


class CancelResponse:
    """`POST /v1/responses/{id}/cancel` (docs/reference/api.md#cancel-a-response)."""

    def __init__(self, store: ResponseStore, stop_run: StopRun) -> None:
        self._store = store
        self._stop_run = stop_run

    async def __call__(self, tenant: str, response_id: str) -> Response:
        """Return the cancelled response. Raises: NotFound; RequestError if it has already ended."""
        response = await self._store.get_response(tenant, response_id)
        if not response.background:
            raise RequestError("Cannot cancel a synchronous response.")
        if response.status not in TERMINAL:
            response = await self._stop_run(tenant, response_id)
        if response.status != "cancelled":
            raise RequestError(f"Cannot cancel a {response.status} response.")
        return response
