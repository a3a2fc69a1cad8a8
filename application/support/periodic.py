"""Periodic background work, such as deliveries and sweeps."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from antiphon.application.support.outages import Outages

logger = logging.getLogger("antiphon.periodic")


async def run_periodically(
    consequence: str, work: Callable[[], Awaitable[object]], *, every_s: float
) -> None:
    """Repeat `work` until cancelled, about every `every_s` seconds.

    A failure is logged once for each outage, with `consequence`.
    """
    outages = Outages(logger, consequence)
    while True:
        with outages.log_outages():
            await work()
        # Jitter: the servers of a store should not all work at the same moment.
        await asyncio.sleep(every_s * random.uniform(0.8, 1.2))
