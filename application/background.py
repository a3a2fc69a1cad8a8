"""Take the runs that nobody has: those that wait, and those that dead servers have left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from antiphon.application.models import Models
from antiphon.application.outages import Outages
from antiphon.application.ports import EventLog, Store, TakenRun
from antiphon.application.restore_run import Restored, RestoreRun
from antiphon.application.run_response import RunResponse
from antiphon.application.runs import LEASE_LOST, Runs

logger = logging.getLogger("antiphon.runs")

LOOK_S = 1.0
"""How often a server looks for runs that others have left or let wait."""


class TakeRuns:
    """Begins what can be begun, as far as this server has room; what cannot has failed.

    Nothing is taken unless `may_take`: who seems dead may only have been cut off from the store.
    """

    def __init__(
        self,
        store: Store,
        log: EventLog,
        runs: Runs,
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

    async def forever(self) -> None:
        """Take runs as they come, until the server begins no more."""
        outages = Outages(logger, "runs of other servers cannot be taken")
        while not self._runs.is_closed:
            with outages.told():
                await self.once()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._runs.wanted.wait()

    async def once(self) -> int:
        """Take what there is room for, and return how many those are. Raises: StoreError."""
        runs = self._runs
        runs.wanted.clear()
        room = runs.room
        if not room or runs.is_closed or not self._may_take():
            return 0
        await self._models.check()  # an engine that is dead would fail all that waits
        taken = await self._store.take(self._owner, limit=room)
        runs.are_waiting = len(taken) == room
        for each in taken:
            await self._start(each)
        return len(taken)

    async def _start(self, taken: TakenRun) -> None:
        runs, response_id = self._runs, taken.lease.response_id
        # One that was ours: it was taken from us meanwhile, and is nobody's now.
        await runs.cancel(response_id, LEASE_LOST)
        with runs.at_work(response_id, in_slot=True):
            await runs.start(response_id, self._resume(taken), lease=taken.lease)

    async def _resume(self, taken: TakenRun) -> None:
        try:
            restored = await self._restore(taken)
            if restored is not None:
                await self._go_on(restored)
        except Exception:  # it is still ours, and at work nowhere: it will be taken again
            logger.exception("response %s could not go on", taken.lease.response_id)

    async def _go_on(self, restored: Restored) -> None:
        run = restored.run
        if restored.failure is not None:
            await self._run_response.finish(run, run.sequencer.fail(restored.failure))
            return
        await self._log.create(run.id)
        await self._log.append(run.id, restored.events)
        await self._run_response(run)
