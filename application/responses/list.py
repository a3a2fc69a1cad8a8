"""List the responses of a tenant (docs/reference/api.md#list-responses)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.application.ports import ResponseStore, StorePageQuery
from antiphon.application.responses.get import GetResponse
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.listing import ListPage, list_matching
from antiphon.domain.responses.response_lists import ResponseFilter, ResponseSummary


class ListResponses:
    """`GET /v1/responses`: each response as `GET /v1/responses/{id}` shows it, in short."""

    def __init__(self, store: ResponseStore, runs: ActiveRuns, get: GetResponse) -> None:
        self._store = store
        self._runs = runs
        self._get = get

    async def __call__(
        self, tenant: str, query: StorePageQuery, filter: ResponseFilter
    ) -> ListPage[ResponseSummary]:
        """Raises: RequestError if there is no response `after`."""

        async def read(query: StorePageQuery) -> Sequence[ResponseSummary]:
            page = await self._store.list_responses(tenant, query)
            return [await self._show(tenant, response) for response in page]

        return await list_matching(read, query, filter.matches)

    async def _show(self, tenant: str, response: ResponseSummary) -> ResponseSummary:
        shown = self._runs.with_metrics(response)
        if shown.status == "queued" and await self._get.has_started(tenant, shown.id):
            return replace(shown, status="in_progress")
        return shown
