"""Undo in the store what came to nothing: at once or, where the store fails just then, later.

What nobody undoes lasts for as long as this server lives: a conversation that is claimed, an
Idempotency-Key that is given, for a response that never was.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable

from antiphon.application.support.retry import retry
from antiphon.domain.errors import StoreError

logger = logging.getLogger("antiphon.runs")

MAX_PENDING = 10_000
"""What is owed beyond that is left, the oldest first, until this server is gone."""

Undo = Callable[[], Awaitable[object]]
"""Done twice, it does no more than once. Raises: StoreError."""


class Compensation:
    """One thing after the other: a store that has just come back is not run down by those who had
    to wait for it.
    """

    def __init__(self) -> None:
        self._owed: deque[Undo] = deque(maxlen=MAX_PENDING)
        self._paying: asyncio.Task[None] | None = None

    async def run(self, undo: Undo, *, log_message: str) -> None:
        """Undo it now or later; never raises. `log_message` says, in the log, how things stand."""
        try:
            await undo()
        except StoreError as exc:
            logger.warning("%s, until the store takes it: %s", log_message, exc)
            self._owe(undo)
        except Exception:
            logger.exception(log_message)

    def _owe(self, undo: Undo) -> None:
        self._owed.append(undo)
        if self._paying is None or self._paying.done():
            self._paying = asyncio.create_task(self._pay())

    async def _pay(self) -> None:
        while self._owed:
            undo = self._owed.popleft()
            try:
                await retry(undo, math.inf)
            except Exception:  # whatever else a store raises: the others are still owed
                logger.exception("what came to nothing is not undone")
