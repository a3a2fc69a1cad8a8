"""Work on the event loop that takes some milliseconds: a portion of it in each iteration.

Forty prompts of 30 KB take 8 ms each. If all of them were rendered in the same iteration, everybody
would wait for a third of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TypeVar

from antiphon.application.support.round_robin import RoundRobin
from antiphon.application.support.tasks import call_soon_for_all

T = TypeVar("T")

PORTION_S = 0.005


class LoopPortions:
    """Starts work until this iteration of the loop has taken `portion_s`; the rest takes turns.

    Then each iteration starts one piece of work, of each tenant in turn. The time of an iteration
    counts from the first work that it starts.
    """

    def __init__(self, portion_s: float = PORTION_S) -> None:
        self._portion_s = portion_s
        self._started_at: float | None = None
        """When the first work of this iteration started, if any."""
        self._waiting: RoundRobin[str, asyncio.Future[None]] = RoundRobin()

    async def run(self, tenant: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work()`, started in turn."""
        await self.wait(tenant)
        return await work()

    async def wait(self, tenant: str) -> None:
        """Return when the caller may do a piece of work, right away."""
        if self._waiting.count or self._is_over():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(tenant, turn)
            await turn
        self._schedule()

    def _is_over(self) -> bool:
        started_at = self._started_at
        return started_at is not None and perf_counter() - started_at >= self._portion_s

    def _schedule(self) -> None:
        if self._started_at is None:
            self._started_at = perf_counter()
            call_soon_for_all(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self._started_at = None
        while self._waiting.count:
            self._schedule()
            turn = self._waiting.pop()
            if not turn.done():  # its request may have been canceled
                turn.set_result(None)
                return
