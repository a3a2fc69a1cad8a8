"""List the responses of a tenant (docs/reference/api.md#list-responses)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.application.ports import ResponseStore, StorePageQuery
from antiphon.application.responses.get import GetResponse
from antiphon.application.responses.search import SearchResponses
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.listing import ListPage, list_matching
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.domain.responses.preview import with_answers
from antiphon.domain.responses.response_lists import ResponseFilter, ResponseSummary
from antiphon.domain.responses.text_search import TextSearch


class ListResponses:
    """`GET /v1/responses`: each response as `GET /v1/responses/{id}` shows it, in short."""

    def __init__(
        self, store: ResponseStore, runs: ActiveRuns, get: GetResponse, answers: ApprovalAnswers
    ) -> None:
        self._store = store
        self._runs = runs
        self._get = get
        self._answers = answers
        self._search = SearchResponses(store)

    async def __call__(
        self,
        tenant: str,
        query: StorePageQuery,
        filter: ResponseFilter,
        search: TextSearch | None = None,
    ) -> ListPage[ResponseSummary]:
        """With a `search`, return only responses that have its words.

        Raises: RequestError if there is no response `after`, or if the store cannot search.
        """

        if search is None:
            return await list_matching(partial(self.read_page, tenant), query, filter.matches)
        show = partial(self._show_all, tenant)
        return await self._search(tenant, search, query, show=show, matches=filter.matches)

    async def read_page(self, tenant: str, query: StorePageQuery) -> Sequence[ResponseSummary]:
        """Raises: NotFound if there is no response `after`."""
        return await self._show_all(tenant, await self._store.list_responses(tenant, query))

    async def _show_all(
        self, tenant: str, page: Sequence[ResponseSummary]
    ) -> Sequence[ResponseSummary]:
        answered = await self._with_answers(tenant, page)
        return [await self._show(tenant, response) for response in answered]

    async def _with_answers(
        self, tenant: str, page: Sequence[ResponseSummary]
    ) -> Sequence[ResponseSummary]:
        """Return the page with what has answered the approval requests of each response."""
        ids = [
            approval.id
            for response in page
            if response.preview is not UNSET
            for approval in response.preview.approvals
        ]
        if not ids:
            return page
        answers = await self._answers.find(tenant, ids)
        return [
            replace(response, preview=with_answers(response.preview, answers))
            if response.preview is not UNSET and response.preview.approvals
            else response
            for response in page
        ]

    async def _show(self, tenant: str, response: ResponseSummary) -> ResponseSummary:
        shown = self._runs.with_metrics(response)
        if shown.status == "queued" and await self._get.has_started(tenant, shown.id):
            return replace(shown, status="in_progress")
        return shown
