"""Delete a response, and stop it first if it is running."""

from __future__ import annotations

from contextlib import suppress

from msgspec import UNSET

from antiphon.application.ports import EventLog, ResponseStore
from antiphon.application.resources.quotas import CheckQuota
from antiphon.application.runs.stop import StopRun
from antiphon.domain.errors import NotFound
from antiphon.domain.responses.response import TERMINAL


class DeleteResponse:
    def __init__(
        self, store: ResponseStore, log: EventLog, stop_run: StopRun, check_quota: CheckQuota
    ) -> None:
        self._store = store
        self._log = log
        self._stop_run = stop_run
        self._check_quota = check_quota

    async def __call__(self, tenant: str, response_id: str) -> None:
        """Stop the response if it is running, then delete it, and those of its sub-agents.

        Raises: NotFound.
        """
        response = await self._store.get_response(tenant, response_id)  # checks the tenant first
        if response.status not in TERMINAL:
            response = await self._stop_run(tenant, response_id)
        await self._store.delete_response(tenant, response_id)
        self._check_quota.forget(tenant)
        await self._log.drop(response_id)
        for agent in () if response.metrics is UNSET else response.metrics.agents:
            with suppress(NotFound):
                await self(tenant, agent.response_id)
