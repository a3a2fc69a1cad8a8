"""Batches: create, list, get, cancel."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from antiphon.application.ports import (
    Batches,
    Clock,
    FileStore,
    NewId,
    VectorPageQuery,
)
from antiphon.application.resources.batches.run import RunBatches
from antiphon.application.support.key_locks import KeyLocks
from antiphon.application.support.paging import Page, read_page
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import WINDOW_S, Batch, NewBatch, advance
from antiphon.domain.errors import ConcurrencyLimitExceeded, NotFound, RequestError

INPUT_PURPOSE = "batch"


class BatchLimits(Struct, frozen=True, kw_only=True):
    """`open_per_tenant` limits the batches of a tenant that have not ended.

    Several servers may exceed it together by a few.
    """

    open_per_tenant: int = 100


class CreateBatch:
    def __init__(
        self,
        batches: Batches,
        files: FileStore,
        run: RunBatches,
        *,
        limits: BatchLimits,
        new_id: NewId,
        now: Clock,
    ) -> None:
        self._batches = batches
        self._files = files
        self._run = run
        self._limits = limits
        self._new_id = new_id
        self._now = now
        self._locks = KeyLocks()

    async def __call__(self, caller: Caller, request: NewBatch) -> Batch:
        """Add a batch, which is validated later. Raises: RequestError."""
        await self._check_file(caller.tenant, request.input_file_id)
        now = int(self._now())
        batch = Batch(
            id=self._new_id("batch"),
            endpoint=request.endpoint,
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=request.metadata,
        )
        # The next one of the tenant is counted when this one is there.
        async with self._locks.of(caller.tenant):
            await self._check_room(caller.tenant)
            await self._batches.create_batch(caller, batch)
        self._run.wake()
        return batch

    async def _check_file(self, tenant: str, file_id: str) -> None:
        try:
            file = await self._files.get_file(tenant, file_id)
        except NotFound:
            raise NotFound(
                f"File with id {file_id[:100]!r} not found.", param="input_file_id"
            ) from None
        if file.purpose != INPUT_PURPOSE:
            raise RequestError(
                f"The input file must be uploaded with the purpose {INPUT_PURPOSE!r}, not "
                f"{file.purpose!r}.",
                param="input_file_id",
                code="invalid_value",
            )

    async def _check_room(self, tenant: str) -> None:
        count = await self._batches.count_open_batches(tenant)
        if count >= self._limits.open_per_tenant:
            raise ConcurrencyLimitExceeded(
                f"{count} of your batches have not ended, which is the limit. Send the request "
                "again when one of them has.",
                code="rate_limit_exceeded",
            )


class GetBatch:
    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def __call__(self, tenant: str, batch_id: str) -> Batch:
        """Raises: NotFound."""
        return await self._batches.get_batch(tenant, batch_id)


class ListBatches:
    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    async def __call__(self, tenant: str, query: VectorPageQuery) -> Page[Batch]:
        """Raises: NotInList."""
        return await read_page(partial(self._batches.list_batches, tenant), query)


class CancelBatch:
    def __init__(self, batches: Batches, run: RunBatches, *, now: Clock) -> None:
        self._batches = batches
        self._run = run
        self._now = now

    async def __call__(self, tenant: str, batch_id: str) -> Batch:
        """Start no more of its requests; it is cancelled when those that run have ended.

        Raises: NotFound; RequestError if it cannot be cancelled any more.
        """
        now = self._now()
        batch = await self._batches.update_batch(
            tenant, batch_id, lambda batch: advance(batch, "cancel", now)
        )
        self._run.wake(batch_id)
        return batch
