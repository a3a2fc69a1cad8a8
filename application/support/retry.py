"""Retry calls to a store that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import random
from typing import TypeVar

from antiphon.domain.errors import StoreError

T = TypeVar("T")

INITIAL_DELAY_S = 0.05
MAX_DELAY_S = 1.0


async def retry(
    work: Callable[[], Awaitable[T]],
    limit_s: float,
    *,
    on_failure: Callable[[], None] = lambda: None,
) -> T:
    """Call `work` until it succeeds, with exponential backoff; raise its last StoreError.

    No attempt starts later than `limit_s` after the first failure. Each failure calls `on_failure`.
    """
    loop = asyncio.get_running_loop()
    deadline, delay_s = None, INITIAL_DELAY_S
    while True:
        try:
            return await work()
        except StoreError:
            on_failure()
            deadline = loop.time() + limit_s if deadline is None else deadline
            # Jitter: the runs that one outage stopped must not all return at the same moment.
            wait_s = delay_s * (0.5 + random())
            if loop.time() + wait_s > deadline:
                raise
        await asyncio.sleep(wait_s)
        delay_s = min(2 * delay_s, MAX_DELAY_S)
