"""Undo writes of operations that failed: now or, while the store is down, later.

Without it, a conversation stays claimed, or an Idempotency-Key stays reserved, for a response that
never existed, until this server stops.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable

from antiphon.application.support.retry import retry
from antiphon.application.support.tasks import start_shared_task
from antiphon.domain.errors import StoreError

logger = logging.getLogger("antiphon.runs")

MAX_PENDING = 10_000
"""The oldest are dropped when there are more."""

Undo = Callable[[], Awaitable[object]]
"""An idempotent undo operation. Raises: StoreError."""


class Compensation:
    """Runs undo operations and retries the failed ones one by one, so that a store that has just
    recovered is not overloaded.
    """

    def __init__(self) -> None:
        self._pending: deque[Undo] = deque(maxlen=MAX_PENDING)
        self._task: asyncio.Task[None] | None = None

    async def run(self, undo: Undo, *, log_message: str) -> None:
        """Undo now or later; never raises. `log_message` describes the state until then."""
        try:
            await undo()
        except StoreError as exc:
            logger.warning("%s, until the store accepts the change: %s", log_message, exc)
            self._add(undo)
        except Exception:
            logger.exception(log_message)

    def _add(self, undo: Undo) -> None:
        self._pending.append(undo)
        if self._task is None or self._task.done():
            self._task = start_shared_task(self._run_pending())

    async def _run_pending(self) -> None:
        while self._pending:
            undo = self._pending.popleft()
            try:
                await retry(undo, math.inf)
            except Exception:  # whatever a store raises: the others are still pending
                logger.exception("an undo operation failed")
