"""Return a stored response."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.application.ports import Store
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.domain.errors import NotFound
from antiphon.domain.responses.preview import with_answers
from antiphon.domain.responses.response import Response

QUEUED_EVENTS = 2
"""`created` and `queued`: a third event in the log shows that the run has started."""


class GetResponse:
    def __init__(self, store: Store, runs: ActiveRuns, answers: ApprovalAnswers) -> None:
        self._store = store
        self._runs = runs
        self._answers = answers

    async def __call__(self, tenant: str, response_id: str) -> Response:
        """Return it with the record of its run so far, if it runs here. Raises: NotFound."""
        response = self._runs.with_metrics(await self._store.get_response(tenant, response_id))
        if response.status == "queued" and await self.has_started(tenant, response_id):
            return replace(response, status="in_progress")
        preview = response.preview
        if preview is UNSET or not preview.approvals:
            return response
        answers = await self._answers.find(tenant, [each.id for each in preview.approvals])
        return replace(response, preview=with_answers(preview, answers))

    async def has_started(self, tenant: str, response_id: str) -> bool:
        """Return whether a response that is stored as queued runs."""
        # The response is stored when it is created and when it ends; between, only the log changes.
        try:
            log_slice = await self._store.read_events(
                tenant, response_id, after=QUEUED_EVENTS - 1, limit_bytes=1
            )
        except NotFound:
            return False
        return bool(log_slice.chunks)
