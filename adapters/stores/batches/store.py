"""Batches in SQLite: in a separate file beside the uploaded files, or in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import apsw

from antiphon.adapters.stores.batches import rows
from antiphon.adapters.stores.sqlite.file import Row, SqliteFile, SqliteMemory, rows_of
from antiphon.adapters.stores.vectors.rows import key_range
from antiphon.application.ports import (
    BatchClaim,
    Batches,
    BatchProgress,
    ChangeBatch,
    ClaimedBatch,
    Clock,
    LineResult,
    VectorPageQuery,
)
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import Batch

MIGRATIONS = "batches"

MAX_RESULTS = 1000
"""Results of one read, however short they are."""

KEY = "SELECT key FROM batches WHERE tenant = ? AND id = ?"
ADD = "INSERT INTO batches (tenant, id, caller, body, due_at) VALUES (?, ?, ?, ?, ?)"
GET = "SELECT body, completed, failed, key FROM batches WHERE tenant = ? AND id = ?"
LIST = """
SELECT body, completed, failed FROM batches WHERE tenant = ? AND key > ? AND key < ?
ORDER BY key {order} LIMIT ?
"""
COUNT_OPEN = "SELECT count(*) FROM batches WHERE tenant = ? AND ended_at IS NULL"
IS_CLAIMED = "key = ? AND attempts = ? AND ended_at IS NULL"
GET_CLAIMED = f"SELECT body, completed, failed, key FROM batches WHERE {IS_CLAIMED}"
UPDATE = "UPDATE batches SET body = ?, ended_at = coalesce(ended_at, ?) WHERE key = ?"
DUE = """
SELECT key FROM batches
WHERE ended_at IS NULL AND due_at <= ? AND tenant NOT IN (SELECT value FROM json_each(?))
ORDER BY due_at, key LIMIT 1
"""
CLAIM = """
UPDATE batches SET due_at = ?, attempts = attempts + 1 WHERE key = ?
RETURNING body, completed, failed, key, attempts, tenant, id, caller
"""
EXTEND = f"""
UPDATE batches SET due_at = ? WHERE {IS_CLAIMED} RETURNING body, completed, failed
"""
ADD_RESULT = """
INSERT OR IGNORE INTO batch_results (batch, line, is_failure, bytes, body) VALUES (?, ?, ?, ?, ?)
"""
COUNT_RESULTS = "UPDATE batches SET completed = completed + ?, failed = failed + ? WHERE key = ?"
LINES = "SELECT line, is_failure, bytes FROM batch_results WHERE batch = ?"
SIZES = """
SELECT line, bytes FROM batch_results WHERE batch = ? AND is_failure = ? AND line > ?
ORDER BY line LIMIT ?
"""
RESULTS = """
SELECT line, is_failure, body FROM batch_results
WHERE batch = ? AND is_failure = ? AND line > ? AND line <= ? ORDER BY line
"""
ERASE_RESULTS = """
DELETE FROM batch_results WHERE rowid IN (
    SELECT r.rowid FROM batches b JOIN batch_results r ON r.batch = b.key
    WHERE b.ended_at IS NOT NULL LIMIT ?
)
"""
ERASE_BATCHES = """
DELETE FROM batches WHERE key IN (
    SELECT key FROM batches b WHERE ended_at < ?
    AND NOT EXISTS (SELECT 1 FROM batch_results r WHERE r.batch = b.key) LIMIT ?
)
"""
IS_ANYTHING_SWEPT = """
SELECT 1 WHERE EXISTS (SELECT 1 FROM batches WHERE ended_at < ?) OR EXISTS (
    SELECT 1 FROM batch_results r JOIN batches b ON b.key = r.batch WHERE b.ended_at IS NOT NULL
)
"""


class SqliteBatches(Batches):
    """Batches that several servers of one machine may share; in memory without a path."""

    def __init__(self, path: Path | None, *, now: Clock = time.time) -> None:
        self._file: SqliteFile | SqliteMemory = (
            SqliteMemory(migrations=MIGRATIONS, prepare=lambda _: None)
            if path is None
            else SqliteFile(path, migrations=MIGRATIONS, readers=2)
        )
        self._now = now

    async def start(self) -> None:
        # What dead servers had claimed is due immediately.
        query = "UPDATE batches SET due_at = 0 WHERE ended_at IS NULL"
        await self._file.start(alone=lambda db: db.execute(query).fetchall())

    async def aclose(self) -> None:
        await self._file.aclose()

    async def create_batch(self, caller: Caller, batch: Batch) -> None:
        row = (caller.tenant, batch.id, rows.encode(caller), rows.encode(batch), self._now())
        await self._file.write(lambda db: rows_of(db, ADD, row))

    async def get_batch(self, tenant: str, batch_id: str) -> Batch:
        found = await self._file.read(
            lambda db: rows_of(db, GET, (tenant, batch_id)), tenant=tenant
        )
        if not found:
            raise rows.not_found(batch_id)
        return rows.batch_of(*found[0][:3])

    async def list_batches(self, tenant: str, query: VectorPageQuery) -> list[Batch]:
        def work(db: apsw.Connection) -> list[Batch]:
            keys = key_range(query, lambda batch_id: _key(db, tenant, batch_id))
            values = (tenant, keys.low, keys.high, query.limit)
            page = rows_of(db, LIST.format(order=keys.order), values)
            return keys.in_order([rows.batch_of(*row) for row in page])

        return await self._file.read(work, tenant=tenant)

    async def count_open_batches(self, tenant: str) -> int:
        [(count,)] = await self._file.read(
            lambda db: rows_of(db, COUNT_OPEN, (tenant,)), tenant=tenant
        )
        return int(count)

    async def update_batch(self, tenant: str, batch_id: str, change: ChangeBatch) -> Batch:
        def work(db: apsw.Connection) -> Batch:
            found = rows_of(db, GET, (tenant, batch_id))
            if not found:
                raise rows.not_found(batch_id)
            return self._update(db, found[0], change)

        return await self._file.write(work)

    async def update_claimed(self, claim: BatchClaim, change: ChangeBatch) -> Batch | None:
        def work(db: apsw.Connection) -> Batch | None:
            found = rows_of(db, GET_CLAIMED, (claim.key, claim.attempt))
            return self._update(db, found[0], change) if found else None

        return await self._file.write(work)

    def _update(self, db: apsw.Connection, row: Row, change: ChangeBatch) -> Batch:
        batch = change(rows.batch_of(*row[:3]))
        ended_at = self._now() if batch.has_ended else None
        rows_of(db, UPDATE, (rows.encode(batch), ended_at, row[3]))
        return batch

    async def claim_batch(
        self, *, claim_s: float, skip: Collection[str] = ()
    ) -> ClaimedBatch | None:
        values = (self._now(), json.dumps([*skip]))

        def work(db: apsw.Connection) -> ClaimedBatch | None:
            due = rows_of(db, DUE, values)
            if not due:
                return None
            return rows.claimed_of(rows_of(db, CLAIM, (self._now() + claim_s, due[0][0]))[0])

        # Read first: otherwise every server would write every few seconds, even with nothing due.
        if not await self._file.read(lambda db: rows_of(db, DUE, values)):
            return None
        return await self._file.write(work)

    async def extend_claim(self, claim: BatchClaim, seconds: float) -> Batch | None:
        values = (self._now() + seconds, claim.key, claim.attempt)
        found = await self._file.write(lambda db: rows_of(db, EXTEND, values))
        return rows.batch_of(*found[0]) if found else None

    async def add_results(self, claim: BatchClaim, results: Sequence[LineResult]) -> bool:
        def work(db: apsw.Connection) -> bool:
            if not rows_of(db, GET_CLAIMED, (claim.key, claim.attempt)):
                return False
            added = [each for each in results if _add_result(db, claim.key, each)]
            failed = sum(each.is_failure for each in added)
            rows_of(db, COUNT_RESULTS, (len(added) - failed, failed, claim.key))
            return True

        return await self._file.write(work)

    async def get_progress(self, claim: BatchClaim) -> BatchProgress:
        found = await self._file.read(
            lambda db: rows_of(db, LINES, (claim.key,)), tenant=claim.tenant
        )
        return rows.progress_of(found)

    async def read_results(
        self, claim: BatchClaim, *, failures: bool, after: int = 0, limit_bytes: int
    ) -> Sequence[LineResult]:
        def work(db: apsw.Connection) -> Sequence[LineResult]:
            sizes = rows_of(db, SIZES, (claim.key, failures, after, MAX_RESULTS))
            lines = [*rows.fitting(sizes, limit_bytes)]
            if not lines:
                return []
            return rows.results_of(rows_of(db, RESULTS, (claim.key, failures, after, lines[-1])))

        return await self._file.read(work, tenant=claim.tenant)

    async def sweep(self, *, ended_before: float, limit: int) -> int:
        def work(db: apsw.Connection) -> int:
            rows_of(db, ERASE_RESULTS, (limit,))
            erased: int = db.changes()
            if erased < limit:
                rows_of(db, ERASE_BATCHES, (ended_before, limit - erased))
                erased += db.changes()
            return erased

        query = (IS_ANYTHING_SWEPT, (ended_before,))
        if not await self._file.read(lambda db: rows_of(db, *query)):
            return 0
        return await self._file.erase(work)


def _key(db: apsw.Connection, tenant: str, batch_id: str) -> int:
    for (key,) in rows_of(db, KEY, (tenant, batch_id)):
        return int(key)
    raise rows.not_found(batch_id)


def _add_result(db: apsw.Connection, key: int, result: LineResult) -> bool:
    row = (key, result.line, result.is_failure, len(result.body), result.body)
    rows_of(db, ADD_RESULT, row)
    return db.changes() > 0
