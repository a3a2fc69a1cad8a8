"""Batches in the schema of the PostgreSQL store, for all servers that share it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from antiphon.adapters.stores.batches import rows
from antiphon.adapters.stores.postgres.server import Connection, PostgresServer, Row, Work, columns
from antiphon.adapters.stores.vectors.rows import range_between
from antiphon.application.ports import (
    BatchClaim,
    Batches,
    BatchProgress,
    ChangeBatch,
    ClaimedBatch,
    LineResult,
    VectorPageQuery,
)
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import Batch
from antiphon.domain.errors import NotInList

T = TypeVar("T")

POOL = 4
"""Connections for batches, apart from those that runs need; half of them at most for one tenant."""

MAX_RESULTS = 1000
"""Results of one read, however short they are."""

NOW = "extract(epoch FROM clock_timestamp())::float8"

ADD = f"""
INSERT INTO batches (tenant, id, caller, body, due_at) VALUES ($1, $2, $3, $4, {NOW})
"""
GET = "SELECT body, completed, failed, number FROM batches WHERE tenant = $1 AND id = $2"
LIST = """
SELECT body, completed, failed FROM batches WHERE tenant = $1 AND number > $2 AND number < $3
ORDER BY number {order} LIMIT $4
"""
COUNT_OPEN = "SELECT count(*) FROM batches WHERE tenant = $1 AND ended_at IS NULL"
IS_CLAIMED = "number = $1 AND attempts = $2 AND ended_at IS NULL"
GET_CLAIMED = f"SELECT body, completed, failed, number FROM batches WHERE {IS_CLAIMED}"
UPDATE = f"""
UPDATE batches SET body = $2,
    ended_at = coalesce(ended_at, CASE WHEN $3::boolean THEN {NOW} END)
WHERE number = $1
"""
CLAIM = f"""
UPDATE batches SET due_at = {NOW} + $1::float8, attempts = attempts + 1
WHERE number = (
    SELECT number FROM batches
    WHERE ended_at IS NULL AND due_at <= {NOW} AND tenant <> ALL($2::text[])
    ORDER BY due_at, number LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING body, completed, failed, number, attempts, tenant, id, caller
"""
EXTEND = f"""
UPDATE batches SET due_at = {NOW} + $3::float8 WHERE {IS_CLAIMED}
RETURNING body, completed, failed
"""
ADD_RESULTS = """
WITH added AS (
    INSERT INTO batch_results (batch, line, is_failure, bytes, body)
    SELECT $1, * FROM unnest($2::int[], $3::boolean[], $4::int[], $5::bytea[])
    ON CONFLICT DO NOTHING RETURNING is_failure
), counted AS (
    SELECT count(*) FILTER (WHERE NOT is_failure) AS completed,
        count(*) FILTER (WHERE is_failure) AS failed
    FROM added
)
UPDATE batches SET completed = batches.completed + counted.completed,
    failed = batches.failed + counted.failed
FROM counted WHERE number = $1
"""
LINES = "SELECT line, is_failure, bytes FROM batch_results WHERE batch = $1"
SIZES = """
SELECT line, bytes FROM batch_results WHERE batch = $1 AND is_failure = $2 AND line > $3
ORDER BY line LIMIT $4
"""
RESULTS = """
SELECT line, is_failure, body FROM batch_results
WHERE batch = $1 AND is_failure = $2 AND line > $3 AND line <= $4 ORDER BY line
"""
ERASE_RESULTS = """
DELETE FROM batch_results r USING (
    SELECT r.batch, r.line FROM batches b JOIN batch_results r ON r.batch = b.number
    WHERE b.ended_at IS NOT NULL LIMIT $1
) AS old
WHERE r.batch = old.batch AND r.line = old.line RETURNING 1
"""
ERASE_BATCHES = """
DELETE FROM batches WHERE number IN (
    SELECT number FROM batches b WHERE ended_at < $1
    AND NOT EXISTS (SELECT 1 FROM batch_results r WHERE r.batch = b.number) LIMIT $2
) RETURNING 1
"""


class PostgresBatches(Batches):
    """Batches with a pool of connections of their own."""

    def __init__(self, dsn: str, *, schema: str = "antiphon") -> None:
        self._server = PostgresServer(
            dsn, schema=schema, pool=POOL, start_timeout_s=5.0, run_timeout_s=20.0
        )
        self._slots = FairQueue(POOL, per_tenant=POOL // 2)

    async def start(self) -> None:
        await self._server.start()

    async def aclose(self) -> None:
        await self._server.aclose()

    async def create_batch(self, caller: Caller, batch: Batch) -> None:
        values = (caller.tenant, batch.id, rows.encode(caller), rows.encode(batch))
        await self._write(caller.tenant, ADD, *values)

    async def get_batch(self, tenant: str, batch_id: str) -> Batch:
        return rows.batch_of(*(await self._find(tenant, batch_id))[:3])

    async def list_batches(self, tenant: str, query: VectorPageQuery) -> list[Batch]:
        after = await self._number_in_list(tenant, query.after, "after")
        before = await self._number_in_list(tenant, query.before, "before")
        keys = range_between(after, before, is_descending=query.is_descending)
        statement = LIST.format(order=keys.order)
        page = await self._read(tenant, statement, tenant, keys.low, keys.high, query.limit)
        return keys.in_order([rows.batch_of(*row) for row in page])

    async def count_open_batches(self, tenant: str) -> int:
        [(count,)] = await self._read(tenant, COUNT_OPEN, tenant)
        return int(count)

    async def update_batch(self, tenant: str, batch_id: str, change: ChangeBatch) -> Batch:
        async def work(db: Connection) -> Batch:
            row = await db.fetchrow(f"{GET} FOR UPDATE", tenant, batch_id)
            if row is None:
                raise rows.not_found(batch_id)
            return await _update(db, row, change)

        return await self._transaction(tenant, work)

    async def update_claimed(self, claim: BatchClaim, change: ChangeBatch) -> Batch | None:
        async def work(db: Connection) -> Batch | None:
            row = await db.fetchrow(f"{GET_CLAIMED} FOR UPDATE", claim.key, claim.attempt)
            return None if row is None else await _update(db, row, change)

        return await self._transaction(claim.tenant, work)

    async def claim_batch(
        self, *, claim_s: float, skip: Collection[str] = ()
    ) -> ClaimedBatch | None:
        [names] = columns([(each,) for each in skip], 1)
        found = await self._server.fetch(CLAIM, float(claim_s), names)
        return rows.claimed_of(found[0]) if found else None

    async def extend_claim(self, claim: BatchClaim, seconds: float) -> Batch | None:
        values = (claim.key, claim.attempt, float(seconds))
        found = await self._server.fetch(EXTEND, *values, idempotent=True)
        return rows.batch_of(*found[0]) if found else None

    async def add_results(self, claim: BatchClaim, results: Sequence[LineResult]) -> bool:
        added = [(each.line, each.is_failure, len(each.body), each.body) for each in results]

        async def work(db: Connection) -> bool:
            # The row is locked, so no other server can claim the batch before this is committed.
            if await db.fetchrow(f"{GET_CLAIMED} FOR UPDATE", claim.key, claim.attempt) is None:
                return False
            await db.execute(ADD_RESULTS, claim.key, *columns(added, 4))
            return True

        return await self._transaction(claim.tenant, work)

    async def get_progress(self, claim: BatchClaim) -> BatchProgress:
        return rows.progress_of(await self._read(claim.tenant, LINES, claim.key))

    async def read_results(
        self, claim: BatchClaim, *, failures: bool, after: int = 0, limit_bytes: int
    ) -> Sequence[LineResult]:
        tenant, where = claim.tenant, (claim.key, failures, after)
        lines = [*rows.fitting(await self._read(tenant, SIZES, *where, MAX_RESULTS), limit_bytes)]
        if not lines:
            return []
        return rows.results_of(await self._read(tenant, RESULTS, *where, lines[-1]))

    async def sweep(self, *, ended_before: float, limit: int) -> int:
        erased = len(await self._server.fetch(ERASE_RESULTS, limit))
        if erased < limit:
            values = (float(ended_before), limit - erased)
            erased += len(await self._server.fetch(ERASE_BATCHES, *values))
        return erased

    # --- rows -------------------------------------------------------------------------------------

    async def _find(self, tenant: str, batch_id: str) -> Row:
        for row in await self._read(tenant, GET, tenant, batch_id):
            return row
        raise rows.not_found(batch_id)

    async def _number_in_list(self, tenant: str, batch_id: str | None, name: str) -> int | None:
        if batch_id is None:
            return None
        for row in await self._read(tenant, GET, tenant, batch_id):
            return int(row[3])
        raise NotInList(batch_id, name)

    async def _read(self, tenant: str, query: str, *values: object) -> list[Row]:
        async with self._slots.slot(tenant):
            return await self._server.fetch(query, *values, idempotent=True)

    async def _write(self, tenant: str, statement: str, *values: object) -> list[Row]:
        async with self._slots.slot(tenant):
            return await self._server.fetch(statement, *values, timeouts=self._server.run_timeouts)

    async def _transaction(self, tenant: str, work: Work[T]) -> T:
        async with self._slots.slot(tenant):
            return await self._server.in_transaction(work, timeouts=self._server.run_timeouts)


async def _update(db: Connection, row: Row, change: ChangeBatch) -> Batch:
    batch = change(rows.batch_of(*row[:3]))
    await db.execute(UPDATE, row[3], rows.encode(batch), batch.has_ended)
    return batch
