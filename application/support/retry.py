"""Ask a store that fails again, for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import random
from typing import TypeVar

from antiphon.domain.errors import StoreError

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0


async def retry(work: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """Do `work` again while it raises StoreError, with growing pauses; the last error is raised.

    No try begins later than `limit_s` after the first failure.
    """
    loop = asyncio.get_running_loop()
    until, pause = None, FIRST_PAUSE_S
    while True:
        try:
            return await work()
        except StoreError:
            until = loop.time() + limit_s if until is None else until
            # Jitter: many runs that one outage stopped do not all come back at the same moment.
            wait = pause * (0.5 + random())
            if loop.time() + wait > until:
                raise
        await asyncio.sleep(wait)
        pause = min(2 * pause, MAX_PAUSE_S)
