"""Take the runs that nobody has: those that wait, and those that dead servers have left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from antiphon.application.model.models import Models
from antiphon.application.ports import EventLog, LeasedRun, Store
from antiphon.application.runs.active_runs import LEASE_LOST, ActiveRuns
from antiphon.application.runs.restore import RestoredRun, RestoreRun
from antiphon.application.runs.run_response import RunResponse
from antiphon.application.support.outages import Outages
from antiphon.domain.errors import EngineDead

logger = logging.getLogger("antiphon.runs")

ENDED_AT_ONCE = 16
"""Runs of dead servers that are taken in one look where nothing can be begun."""

LOOK_S = 1.0
"""How often a server looks for runs that others have left or let wait."""


class StartBackgroundRuns:
    """Begins what can be begun, as far as this server has room; what cannot has failed, which needs
    no room.

    Nothing is taken unless `may_take`: who seems dead may only have been cut off from the store.
    """

    def __init__(
        self,
        store: Store,
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
        """Take runs as they come, until the server begins no more."""
        outages = Outages(logger, "runs of other servers cannot be taken")
        while not self._runs.is_closed:
            with outages.log_outages():
                await self.run_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._runs.wanted.wait()

    async def run_once(self) -> int:
        """Take what there is room for, and return how many those are.

        Raises: StoreError; EngineDead, with the runs of dead servers ended all the same.
        """
        runs = self._runs
        runs.wanted.clear()
        if runs.is_closed or not self._may_take():
            return 0
        free_slots = runs.free_slots
        if not free_slots:
            await self._end_abandoned()
            return 0
        try:
            await self._models.check()  # an engine that is dead would fail all that waits
        except EngineDead:
            await self._end_abandoned()
            raise
        taken = await self._store.lease_runs(self._owner, limit=free_slots)
        runs.may_have_waiting_runs = len(taken) == free_slots
        for each in taken:
            await self._begin(each, self._go_on, in_slot=True)
        return len(taken)

    async def _end_abandoned(self) -> None:
        abandoned = await self._store.lease_runs(self._owner, limit=ENDED_AT_ONCE, waiting=False)
        for taken in abandoned:
            await self._begin(taken, self._end, in_slot=False)

    async def _begin(
        self,
        taken: LeasedRun,
        go_on: Callable[[RestoredRun], Awaitable[None]],
        *,
        in_slot: bool,
    ) -> None:
        runs, response_id = self._runs, taken.lease.response_id
        # One that was ours: it was taken from us meanwhile, and is nobody's now.
        await runs.cancel(response_id, LEASE_LOST)
        with runs.counted_as_active(response_id, in_slot=in_slot):
            await runs.start(response_id, self._resume(taken, go_on), lease=taken.lease)

    async def _resume(
        self, taken: LeasedRun, go_on: Callable[[RestoredRun], Awaitable[None]]
    ) -> None:
        try:
            restored = await self._restore(taken)
            if restored is not None:
                await go_on(restored)
        except Exception:  # it is still ours, and at work nowhere: it will be taken again
            logger.exception("response %s could not go on", taken.lease.response_id)

    async def _go_on(self, restored: RestoredRun) -> None:
        if restored.failure is not None:
            await self._end(restored)
            return
        run = restored.run
        await self._log.create(run.id)
        await self._log.append(run.id, restored.events)
        await self._run_response(run)

    async def _end(self, restored: RestoredRun) -> None:
        """End a run that cannot be begun; one that can waits for a server that has room for it."""
        run = restored.run
        if restored.failure is None:
            await self._store.give_back(run.lease)
        else:
            await self._run_response.finish(run, run.sequencer.fail(restored.failure))
