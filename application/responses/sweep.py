"""Forget what is past its time, a little at a time, for as long as the server lives."""

from __future__ import annotations

import logging

from antiphon.application.ports import ResponseStore
from antiphon.application.support.periodic import run_periodically

logger = logging.getLogger("antiphon.sweeping")
AT_ONCE = 500
"""What is forgotten in one transaction: requests wait for no more than that."""


class Sweep:
    """Sweeps the store, whoever else does: what two servers find is forgotten once."""

    def __init__(self, store: ResponseStore, *, keep_events_s: float) -> None:
        self._store = store
        self._keep_events_s = keep_events_s

    async def __call__(self) -> int:
        """Forget all that is past its time now, and return how many that were.

        Raises: StoreError.
        """
        swept = 0
        while forgotten := await self._once():
            swept += forgotten
        if swept:
            logger.info("swept: %d responses, logs and keys were past their time", swept)
        return swept

    async def run_every(self, seconds: float) -> None:
        """Sweep about every so many seconds, until cancelled."""
        await run_periodically("what is past its time stays in the store", self, every_s=seconds)

    async def _once(self) -> int:
        return await self._store.sweep(keep_events_s=self._keep_events_s, limit=AT_ONCE)
