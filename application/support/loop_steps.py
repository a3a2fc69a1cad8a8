"""Long work on the event loop: one step of it in each iteration, of each tenant in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from antiphon.application.support.fair_queue import FairQueue


class LoopSteps:
    """Runs iterators for what they do. A step should take about a millisecond."""

    def __init__(self) -> None:
        self._slots = FairQueue(1)

    async def run(self, tenant: str, steps: Iterator[object]) -> None:
        """Return when all steps are done. Raises what a step raises."""
        is_complete = False
        while not is_complete:
            # One step of one iterator in each iteration of the loop, however many there are.
            async with self._slots.slot(tenant):
                is_complete = next(steps, self) is self
                await asyncio.sleep(0)
