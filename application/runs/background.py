"""Lease and start the runs that have no live owner: waiting runs, and the runs of dead servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from antiphon.application.model.models import Models
from antiphon.application.ports import EventLog, LeasedRun, RunStore
from antiphon.application.runs.active_runs import LEASE_LOST, ActiveRuns
from antiphon.application.runs.restore import RestoredRun, RestoreRun
from antiphon.application.runs.run_response import RunResponse
from antiphon.application.support.outages import Outages
from antiphon.application.support.tasks import work_for
from antiphon.domain.errors import EngineDead

logger = logging.getLogger("antiphon.runs")

MAX_ABANDONED = 16
"""Runs of dead servers that are leased in one poll while this server can start none."""

POLL_INTERVAL_S = 1.0
"""The interval between searches for runs without a live owner."""


class StartBackgroundRuns:
    """Starts runs in the free slots of this server, and ends those that cannot start.

    Ending a run needs no slot. The service leases nothing unless `may_take` returns True: a server
    that seems dead may only have lost its connection to the store.
    """

    def __init__(
        self,
        store: RunStore,
        log: EventLog,
        runs: ActiveRuns,
        models: Models,
        restore: RestoreRun,
        run_response: RunResponse,
        *,
        owner: str,
        may_take: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._log = log
        self._runs = runs
        self._models = models
        self._restore = restore
        self._run_response = run_response
        self._owner = owner
        self._may_take = may_take

    async def run_forever(self) -> None:
        """Lease and start runs until ActiveRuns is closed."""
        outages = Outages(logger, "waiting runs and runs of dead servers do not start")
        while not self._runs.is_closed:
            with outages.log_outages():
                await self.run_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._runs.work_available.wait()

    async def run_once(self) -> int:
        """Lease runs for all free slots and start them; return their number.

        Raises: StoreError; EngineDead, after ending the runs of dead servers.
        """
        runs = self._runs
        runs.work_available.clear()
        if runs.is_closed or not self._may_take():
            return 0
        free_slots = runs.free_slots
        if not free_slots:
            await self._end_abandoned()
            return 0
        try:
            await self._models.check()  # without a model, all runs would wait here for one
        except EngineDead:
            await self._end_abandoned()
            raise
        leased = await self._store.lease_runs(
            self._owner,
            limit=free_slots,
            held=runs.slots_held,
            per_tenant=runs.slots_per_tenant,
        )
        for leased_run in leased:
            await self._start(leased_run, self._resume, slot_of=leased_run.lease.tenant)
        runs.note_leased(all_slots=len(leased) == free_slots)
        if runs.has_full_tenants:
            await self._end_abandoned()  # those of the full tenants: the others were leased
        return len(leased)

    async def _end_abandoned(self) -> None:
        abandoned = await self._store.lease_runs(self._owner, limit=MAX_ABANDONED, waiting=False)
        for leased_run in abandoned:
            await self._start(leased_run, self._end)

    async def _start(
        self,
        leased_run: LeasedRun,
        handle: Callable[[RestoredRun], Awaitable[None]],
        *,
        slot_of: str | None = None,
    ) -> None:
        runs, response_id = self._runs, leased_run.lease.response_id
        # It may still run here under an older lease: another server took it over and left it since.
        await runs.cancel(response_id, LEASE_LOST)
        with runs.mark_active(response_id, slot_of=slot_of):
            await runs.start(
                response_id, self._run_leased(leased_run, handle), lease=leased_run.lease
            )

    async def _run_leased(
        self, leased_run: LeasedRun, handle: Callable[[RestoredRun], Awaitable[None]]
    ) -> None:
        work_for(leased_run.lease.tenant)
        try:
            restored = await self._restore(
                leased_run, server=self._owner, is_stopping=lambda: self._runs.is_closed
            )
            if restored is not None:
                self._runs.record(restored.run.id, restored.run.recorder)
                await handle(restored)
        except Exception:  # this server owns the run, but it is not active: it will be leased again
            logger.exception("response %s could not be resumed", leased_run.lease.response_id)

    async def _resume(self, restored: RestoredRun) -> None:
        if restored.failure is not None:
            await self._end(restored)
            return
        run = restored.run
        await self._log.create(run.id, run.tenant, is_stored=True)
        await self._log.append(run.id, restored.events)
        await self._run_response(run)

    async def _end(self, restored: RestoredRun) -> None:
        """End a run that cannot start; let one that can wait for a server with a free slot."""
        run = restored.run
        if restored.failure is None:
            await self._store.give_back_run(run.lease)
        else:
            await self._run_response.finish(run, restored.fail(restored.failure))
