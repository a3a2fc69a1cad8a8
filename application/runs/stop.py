"""Stop a run, wherever it runs: for whoever cancels or deletes its response."""

from __future__ import annotations

import asyncio
from random import random

from antiphon.application.ports import Store
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.restore import RestoreRun
from antiphon.application.runs.run_response import RunResponse
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.errors import StoreError
from antiphon.domain.response import TERMINAL, Response

TRIES = 5
PAUSE_S = 0.1
"""Until it is tried again where somebody else has taken the run from us meanwhile."""


class StopRun:
    """A run of this server is cancelled; one of another is taken from it, and ended here."""

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
        """Return the response, which is over now. Raises: NotFound, StoreError."""
        await self._runs.cancel(response_id)
        for _ in range(TRIES):
            response = await self._store.get(tenant, response_id)
            if response.status in TERMINAL:
                return response
            # To the end: a run that was taken and then left alone would be begun again.
            if not await run_to_completion(self._end(tenant, response_id)):
                await asyncio.sleep(PAUSE_S * (0.5 + random()))
        raise StoreError(f"The response {response_id!r} could not be stopped.")

    async def _end(self, tenant: str, response_id: str) -> bool:
        with self._runs.counted_as_active(response_id):
            taken = await self._store.take_over(self._owner, tenant, response_id)
            if taken is None:
                return True
            restored = await self._restore(taken)
            if restored is None:
                return True
            run = restored.run
            return await self._run_response.finish(run, run.sequencer.cancel())
