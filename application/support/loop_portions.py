"""Work on the event loop that takes some milliseconds: a portion of it in each iteration.

Forty prompts of 30 KB take 8 ms each. If all of them were rendered in the same iteration, everybody
would wait for a third of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, TypeVar

from antiphon.application.support.eager import Rest
from antiphon.application.support.round_robin import RoundRobin
from antiphon.application.support.tasks import call_soon_for_all

T = TypeVar("T")

PORTION_S = 0.005


class LoopPortions:
    """Runs work until this iteration of the loop has worked `portion_s`; the rest takes turns.

    Then each iteration starts one piece of work, of each tenant in turn. What counts is the time up
    to the first wait of a coroutine: one that waits for a thread does not hold up the others.
    """

    def __init__(self, portion_s: float = PORTION_S) -> None:
        self._portion_s = portion_s
        self._worked_s = 0.0
        """In this iteration."""
        self._waiting: RoundRobin[str, asyncio.Future[None]] = RoundRobin()
        self._is_scheduled = False

    async def run(self, tenant: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work()`, started in turn."""
        if self._waiting or self._worked_s >= self._portion_s:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(tenant, turn)
            await turn
        coroutine = work()
        started_at = perf_counter()
        try:
            waits_for = coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self._worked_s += perf_counter() - started_at
            self._schedule()
        return await Rest(coroutine, waits_for)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            call_soon_for_all(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self._worked_s, self._is_scheduled = 0.0, False
        while self._waiting:
            self._schedule()
            turn = self._waiting.pop()
            if not turn.done():  # its request may have been canceled
                turn.set_result(None)
                return
