"""Run the responses of sub-agents, by the services that run background responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress

from antiphon.application.input.submission import Submission
from antiphon.application.ports import Store
from antiphon.application.responses.create import CreateResponseService
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.stop import StopRun
from antiphon.application.runs.stored_events import next_events
from antiphon.application.tools.agents.runs import AgentRuns
from antiphon.domain.errors import NotFound, StoreError
from antiphon.domain.events import Event
from antiphon.domain.responses.response import TERMINAL, Response


class RunAgents(AgentRuns):
    """Runs sub-agents. `create` and `stop_run` return the services, which exist later: they need
    the turns of responses, and those need this."""

    def __init__(
        self,
        store: Store,
        runs: ActiveRuns,
        *,
        create: Callable[[], CreateResponseService],
        stop_run: Callable[[], StopRun],
    ) -> None:
        self._store = store
        self._runs = runs
        self._create = create
        self._stop_run = stop_run

    async def start(self, submission: Submission) -> None:
        ids = submission.caller.tenant, submission.response_id
        if await self._is_there(*ids):
            return
        try:
            created = await self._create()(submission)
        except StoreError:
            if await self._is_there(*ids):  # the write had an effect, or another one was first
                return
            raise
        await created.leave()

    async def _is_there(self, tenant: str, response_id: str) -> bool:
        with suppress(NotFound):
            await self._store.get_response(tenant, response_id)
            return True
        return False

    async def get(self, tenant: str, response_id: str) -> Response:
        return await self._store.get_response(tenant, response_id)

    async def read(self, tenant: str, response_id: str, after: int) -> Sequence[Event]:
        return await next_events(self._store, tenant, response_id, after)

    async def wait(self, tenant: str, after: Mapping[str, int], limit_s: float) -> None:
        waits = [
            asyncio.ensure_future(
                self._store.wait_for_events(tenant, each, after=number, limit_s=limit_s)
            )
            for each, number in after.items()
        ]
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def stop(self, tenant: str, response_id: str) -> None:
        response = await self._store.get_response(tenant, response_id)
        if response.status not in TERMINAL:
            await self._stop_run()(tenant, response_id)

    def cancel_here(self, response_id: str) -> None:
        self._runs.cancel_soon(response_id)

    def lend_slot(self, response_id: str) -> AbstractContextManager[None]:
        return self._runs.lend_slot(response_id)
