"""What this server owns in the store, and what it has at work, are kept the same."""

from __future__ import annotations

import asyncio
import logging
from itertools import count

from antiphon.application.ports import Lease, RunStore
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.outages import Outages

logger = logging.getLogger("antiphon.runs")

LOOK_S = 0.4
"""How long a run may go on that was cancelled, deleted or taken elsewhere."""

IDLE_LOOKS = 5
"""Where nothing runs, one of so many looks is enough: only what strays is left to find."""


class WatchLeases:
    """Stops runs whose lease is void; gives back those that this server owns and has not at work:
    their end could not be kept, or whoever had taken them failed.
    """

    def __init__(self, store: RunStore, runs: ActiveRuns, *, owner: str) -> None:
        self._store = store
        self._runs = runs
        self._owner = owner
        self._strays: set[Lease] = set()

    async def run_forever(self) -> None:
        outages = Outages(logger, "nobody knows which runs were taken from this server")
        for look in count():
            if self._runs.leases or look % IDLE_LOOKS == 0:
                with outages.log_outages():
                    await self.run_once()
            await asyncio.sleep(LOOK_S)

    async def run_once(self) -> None:
        """Compare once. Raises: StoreError."""
        running = self._runs.leases  # first: what begins meanwhile may be missing in the answer
        held = set(await self._store.held_leases(self._owner))
        for lease in running:
            if lease not in held:
                self._runs.stop_unleased(lease)
        # What was taken a moment ago may not be at work yet; what strays twice is nobody's.
        strays = {lease for lease in held if lease.response_id not in self._runs}
        for lease in strays & self._strays:
            logger.warning("response %s: nobody works on it; another may", lease.response_id)
            await self._store.give_back(lease)
            self._runs.wanted.set()
        self._strays = strays
