"""Run batches, as a background task of the server: claim those that are due, and work on them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress

from antiphon.application.ports import ClaimedBatch
from antiphon.application.resources.batches.parts import BatchParts
from antiphon.application.resources.batches.work import WorkOnBatch
from antiphon.application.support.outages import Outages
from antiphon.application.support.tasks import run_to_completion, work_for
from antiphon.domain.errors import StoreError

logger = logging.getLogger("antiphon.batches")

CONSEQUENCE = "batches are not run"

MAX_BATCHES = 32
"""Batches that a server works on at a time. The second half is for tenants that have none here."""

MAX_PER_TENANT = 4

POLL_S = 2.0
"""Seconds between looks for batches that another server has left."""

SWEPT = 500
"""Rows that one transaction erases."""


class RunBatches:
    """Claims batches and works on them; the other servers of the store do the same.

    `keep_days`: how long batches that have ended are listed (0: forever).
    """

    def __init__(self, parts: BatchParts, *, keep_days: float) -> None:
        self._parts = parts
        self._keep_days = keep_days
        self._has_work = asyncio.Event()
        self._working: dict[str, WorkOnBatch] = {}
        self._per_tenant: Counter[str] = Counter()

    def wake(self, batch_id: str | None = None) -> None:
        """Report a new batch, or one that was cancelled."""
        self._has_work.set()
        if batch_id is not None and (work := self._working.get(batch_id)) is not None:
            work.wake()

    async def run_forever(self) -> None:
        """Run batches as they come, until cancelled; then leave them to others."""
        outages = Outages(logger, CONSEQUENCE)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._has_work.clear()
                with outages.log_outages():
                    while (claimed := await self._claim()) is not None:
                        tasks.create_task(self._work_on(claimed, outages))
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._has_work.wait()

    async def _claim(self) -> ClaimedBatch | None:
        """Claim a batch of a tenant that has none here, or else the next one of any."""
        claimed = await self._claim_except(1, most=MAX_BATCHES)
        if claimed is None:
            claimed = await self._claim_except(MAX_PER_TENANT, most=MAX_BATCHES // 2)
        if claimed is not None:
            self._per_tenant[claimed.claim.tenant] += 1
        return claimed

    async def _claim_except(self, per_tenant: int, *, most: int) -> ClaimedBatch | None:
        if self._per_tenant.total() >= most:
            return None
        return await self._parts.batches.claim_batch(
            claim_s=self._parts.limits.claim_s,
            skip=[each for each, count in self._per_tenant.items() if count >= per_tenant],
        )

    async def _work_on(self, claimed: ClaimedBatch, outages: Outages) -> None:
        claim = claimed.claim
        work = self._working[claim.batch_id] = WorkOnBatch(self._parts, claimed)
        try:
            work_for(claim.tenant)
            with outages.log_outages():
                await work()
        except asyncio.CancelledError:
            with suppress(StoreError):
                await run_to_completion(self._parts.batches.extend_claim(claim, 0))
            raise
        finally:
            if self._working.get(claim.batch_id) is work:
                del self._working[claim.batch_id]
            self._per_tenant -= Counter([claim.tenant])  # forgets those that have none
            self._has_work.set()

    async def sweep(self) -> None:
        """Erase what is not needed any more. Raises: StoreError."""
        keep_s = self._keep_days * 24 * 60 * 60
        before = self._parts.now() - keep_s if keep_s else 0
        while await self._parts.batches.sweep(ended_before=before, limit=SWEPT):
            pass
