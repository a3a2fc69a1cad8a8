"""Work that is done again and again beside the requests: delivering, sweeping."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from antiphon.application.support.outages import Outages

logger = logging.getLogger("antiphon.rounds")


async def run_periodically(
    undone: str, work: Callable[[], Awaitable[object]], *, every_s: float
) -> None:
    """Do `work` until cancelled, with pauses of about `every_s` after each time.

    What it raises is logged once an outage, with `undone`, which says what is not done meanwhile.
    """
    outages = Outages(logger, undone)
    while True:
        with outages.log_outages():
            await work()
        # Not in step with the other servers of the store.
        await asyncio.sleep(every_s * random.uniform(0.8, 1.2))
