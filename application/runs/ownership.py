"""Keep the leases that this server has in the store in step with the runs that are active here."""

from __future__ import annotations

import asyncio
import logging
from itertools import count

from antiphon.application.ports import Lease, RunStore
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.outages import Outages

logger = logging.getLogger("antiphon.runs")

POLL_INTERVAL_S = 0.4
"""The longest time that a run continues after it was cancelled, deleted or taken over elsewhere."""

IDLE_POLLS = 5
"""An idle server makes one of this many polls, because it can only find orphans."""


class WatchLeases:
    """Cancels runs whose lease is void, and gives back orphans.

    An orphan is a run that this server owns but that is not active here: its end could not be
    stored, or resuming it failed.
    """

    def __init__(self, store: RunStore, runs: ActiveRuns, *, owner: str) -> None:
        self._store = store
        self._runs = runs
        self._owner = owner
        self._orphans: set[Lease] = set()

    async def run_forever(self) -> None:
        outages = Outages(logger, "runs that were taken over elsewhere continue here")
        for poll in count():
            if self._runs.leases or poll % IDLE_POLLS == 0:
                with outages.log_outages():
                    await self.run_once()
            await asyncio.sleep(POLL_INTERVAL_S)

    async def run_once(self) -> None:
        """Compare once. Raises: StoreError."""
        # Read first: the store's answer may lack the leases of runs that start meanwhile.
        active_leases = self._runs.leases
        held_leases = set(await self._store.list_leases(self._owner))
        for lease in active_leases:
            if lease not in held_leases:
                self._runs.cancel_lost(lease)
        # A run that was leased a moment ago may not be active yet, so an orphan is found twice.
        orphans = {lease for lease in held_leases if lease.response_id not in self._runs}
        for lease in orphans & self._orphans:
            logger.warning("response %s is not active here: giving it back", lease.response_id)
            await self._store.give_back_run(lease)
            self._runs.work_available.set()
        self._orphans = orphans
