"""Stop a run on any server, to cancel or delete its response."""

from __future__ import annotations

import asyncio
from random import random

from antiphon.application.ports import Store
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.restore import RestoreRun
from antiphon.application.runs.run_response import RunResponse
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.errors import StoreError
from antiphon.domain.responses.response import TERMINAL, Response

MAX_ATTEMPTS = 5
RETRY_DELAY_S = 0.1
"""The delay before the next attempt, after another server has taken over the run meanwhile."""


class StopRun:
    """Cancels a run of this server; takes over a run of another server and ends it here."""

    def __init__(
        self,
        store: Store,
        runs: ActiveRuns,
        restore: RestoreRun,
        run_response: RunResponse,
        *,
        owner: str,
    ) -> None:
        self._store = store
        self._runs = runs
        self._restore = restore
        self._run_response = run_response
        self._owner = owner

    async def __call__(self, tenant: str, response_id: str) -> Response:
        """Return the response, which has ended. Raises: NotFound, StoreError."""
        await self._runs.cancel(response_id)
        for _ in range(MAX_ATTEMPTS):
            response = await self._store.get_response(tenant, response_id)
            if response.status in TERMINAL:
                return response
            # To completion: a run that is taken over and then left would start again.
            if not await run_to_completion(self._end(tenant, response_id)):
                await asyncio.sleep(RETRY_DELAY_S * (0.5 + random()))
        raise StoreError(f"The response {response_id!r} could not be stopped.")

    async def _end(self, tenant: str, response_id: str) -> bool:
        with self._runs.mark_active(response_id):
            leased_run = await self._store.take_over_run(self._owner, tenant, response_id)
            if leased_run is None:
                return True
            restored = await self._restore(leased_run, server=self._owner)
            if restored is None:
                return True
            return await self._run_response.finish(restored.run, restored.cancel())
