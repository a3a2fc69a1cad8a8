"""Delete expired responses, event logs and idempotency keys, in small batches."""

from __future__ import annotations

import logging

from antiphon.application.ports import ResponseStore
from antiphon.application.support.periodic import run_periodically

logger = logging.getLogger("antiphon.sweeping")
MAX_BATCH = 500
"""Deletions in one transaction, because requests wait for it."""


class Sweep:
    """Deletes expired entries of the store; several servers may do so at the same time."""

    def __init__(self, store: ResponseStore, *, keep_events_s: float) -> None:
        self._store = store
        self._keep_events_s = keep_events_s

    async def __call__(self) -> int:
        """Delete all expired entries and return their number. Raises: StoreError."""
        total = 0
        while count := await self._sweep_batch():
            total += count
        if total:
            logger.info("deleted %d expired responses, logs and keys", total)
        return total

    async def run_every(self, seconds: float) -> None:
        """Sweep about every `seconds`, until cancelled."""
        await run_periodically("expired responses stay in the store", self, every_s=seconds)

    async def _sweep_batch(self) -> int:
        return await self._store.sweep(keep_events_s=self._keep_events_s, limit=MAX_BATCH)
