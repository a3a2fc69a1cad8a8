"""Vector stores in SQLite: in a separate file beside the uploaded files, or in memory.

FTS5 searches for words, with one table per tenant. NumPy compares the vector of the query with
every stored vector: for some ten thousand chunks, nothing is faster than reading them in sequence.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from antiphon.adapters.stores.sqlite.file import SqliteFile, SqliteMemory, rows_of
from antiphon.adapters.stores.vectors import rows
from antiphon.adapters.stores.vectors.index import (
    add_chunks,
    erase_chunks,
    make_index,
    sweep_removed,
)
from antiphon.adapters.stores.vectors.jobs import claim_due, has_due
from antiphon.adapters.stores.vectors.search import register_share, search
from antiphon.application.ports import FileToAdd, IndexJob, VectorPageQuery, Vectors, VectorStores
from antiphon.domain.retrieval.file_filters import Filter
from antiphon.domain.retrieval.ranking import Passage
from antiphon.domain.retrieval.text_chunks import TextChunk
from antiphon.domain.retrieval.vector_stores import (
    FileBatch,
    IndexingError,
    Status,
    StoreFile,
    VectorStore,
)

MIGRATIONS = "vector_stores"

READERS = max(2, os.cpu_count() or 1)
"""Searches that run at the same time; one tenant has one fewer."""

_JOB_IS_VALID = "key = ? AND attempts = ? AND status = 'in_progress' AND NOT is_removed"


class SqliteVectorStores(VectorStores):
    """Vector stores that several servers of one machine may share; in memory without a path."""

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.time) -> None:
        self._file: SqliteFile | SqliteMemory = (
            SqliteMemory(migrations=MIGRATIONS, prepare=register_share)
            if path is None
            else SqliteFile(path, migrations=MIGRATIONS, prepare=register_share, readers=READERS)
        )
        self._now = now

    async def start(self) -> None:
        # Jobs that dead servers had claimed are due immediately.
        query = "UPDATE files SET due_at = 0 WHERE status = 'in_progress'"
        await self._file.start(alone=lambda db: db.execute(query).fetchall())

    async def aclose(self) -> None:
        await self._file.aclose()

    async def create_store(self, tenant: str, store: VectorStore) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO tenants (name) VALUES (?)", (tenant,))
            db.execute(
                "INSERT INTO stores (tenant, id, created_at, last_active_at, expires_at, body)"
                " SELECT key, ?, ?, ?, ?, ? FROM tenants WHERE name = ?",
                (store.id, store.created_at, *rows.mutable_values(store), tenant),
            )

        await self._file.write(work)

    async def list_stores(
        self, tenant: str, query: VectorPageQuery | None = None
    ) -> list[VectorStore]:
        return await self._file.read(lambda db: rows.read_stores(db, tenant, query), tenant=tenant)

    async def count_stores(self, tenant: str) -> int:
        query = (
            "SELECT count(*) FROM stores s JOIN tenants t ON t.key = s.tenant"
            " WHERE t.name = ? AND NOT s.is_removed"
        )
        [(count,)] = await self._file.read(lambda db: rows_of(db, query, (tenant,)), tenant=tenant)
        return int(count)

    async def get_store(self, tenant: str, store_id: str) -> VectorStore:
        return await self._file.read(
            lambda db: rows.read_store(db, tenant, store_id), tenant=tenant
        )

    async def update_store(self, tenant: str, store: VectorStore) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE stores SET last_active_at = ?, expires_at = ?, body = ? WHERE key = ?",
                (*rows.mutable_values(store), rows.store_key(db, tenant, store.id)),
            )

        await self._file.write(work)

    async def touch_store(self, tenant: str, store: VectorStore) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE stores SET last_active_at = ?, expires_at = ? WHERE key = ?",
                (store.last_active_at, store.expires_at, rows.store_key(db, tenant, store.id)),
            )

        await self._file.write(work)

    async def get_usage_bytes(self, tenant: str) -> int:
        query = (
            "SELECT coalesce(sum(f.usage_bytes), 0) FROM files f JOIN stores s ON s.key = f.store"
            " JOIN tenants t ON t.key = s.tenant WHERE t.name = ? AND NOT f.is_removed"
        )
        [(size,)] = await self._file.read(lambda db: rows_of(db, query, (tenant,)), tenant=tenant)
        return int(size)

    async def delete_store(self, tenant: str, store_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            key = rows.store_key(db, tenant, store_id)
            db.execute("UPDATE stores SET is_removed = 1 WHERE key = ?", (key,))
            db.execute("UPDATE files SET is_removed = 1 WHERE store = ?", (key,))

        await self._file.write(work)

    async def create_files(
        self,
        tenant: str,
        store_id: str,
        files: Sequence[FileToAdd],
        *,
        batch: FileBatch | None = None,
    ) -> None:
        now = self._now()

        def work(db: apsw.Connection) -> None:
            store = rows.store_key(db, tenant, store_id)
            make_index(db, store)
            if batch is not None:
                db.execute(
                    "INSERT INTO batches (id, store, created_at) VALUES (?, ?, ?)",
                    (batch.id, store, batch.created_at),
                )
            for file in files:
                rows.remove_file(db, store, file.id)
                rows.insert_file(db, store, file, batch, now)

        await self._file.write(work)

    async def list_files(
        self,
        tenant: str,
        store_id: str,
        query: VectorPageQuery | None = None,
        *,
        batch_id: str | None = None,
        status: Status | None = None,
    ) -> list[StoreFile]:
        def work(db: apsw.Connection) -> list[StoreFile]:
            key = rows.store_key(db, tenant, store_id)
            if batch_id is not None:
                rows.batch_row(db, key, batch_id)
            return rows.read_files(db, key, query, batch_id=batch_id, status=status)

        return await self._file.read(work, tenant=tenant)

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> StoreFile:
        return await self._file.read(
            lambda db: rows.read_file(db, rows.store_key(db, tenant, store_id), file_id),
            tenant=tenant,
        )

    async def update_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: dict[str, Any]
    ) -> StoreFile:
        def work(db: apsw.Connection) -> StoreFile:
            store = rows.store_key(db, tenant, store_id)
            db.execute(
                "UPDATE files SET attributes = ? WHERE store = ? AND id = ? AND NOT is_removed",
                (msgspec.json.encode(attributes), store, file_id),
            )
            return rows.read_file(db, store, file_id)

        return await self._file.write(work)

    async def delete_file(self, tenant: str, store_id: str, file_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            store = rows.store_key(db, tenant, store_id)
            rows.read_file(db, store, file_id)
            rows.remove_file(db, store, file_id)

        await self._file.write(work)

    async def delete_file_everywhere(self, tenant: str, file_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE files SET is_removed = 1 WHERE id = ? AND store IN (SELECT s.key FROM"
                " stores s JOIN tenants t ON t.key = s.tenant WHERE t.name = ?)",
                (file_id, tenant),
            )

        await self._file.write(work)

    async def get_texts(self, tenant: str, store_id: str, file_id: str) -> list[str]:
        def work(db: apsw.Connection) -> list[str]:
            store = rows.store_key(db, tenant, store_id)
            rows.read_file(db, store, file_id)
            chunks = rows_of(
                db,
                "SELECT c.text, c.overlap_chars FROM chunks c JOIN files f ON f.key = c.file"
                " WHERE f.store = ? AND f.id = ? AND NOT f.is_removed AND f.status = 'completed'"
                " ORDER BY c.key",
                (store, file_id),
            )
            return [text[overlap_chars:] for text, overlap_chars in chunks]

        return await self._file.read(work, tenant=tenant)

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        return await self._file.read(
            lambda db: rows.read_batch(
                db, rows.store_key(db, tenant, store_id), store_id, batch_id
            ),
            tenant=tenant,
        )

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        def work(db: apsw.Connection) -> FileBatch:
            store = rows.store_key(db, tenant, store_id)
            rows.batch_row(db, store, batch_id)
            db.execute("UPDATE batches SET is_cancelled = 1 WHERE id = ?", (batch_id,))
            db.execute(
                "UPDATE files SET status = 'cancelled' WHERE batch = ? AND status = 'in_progress'"
                " AND NOT is_removed",
                (batch_id,),
            )
            return rows.read_batch(db, store, store_id, batch_id)

        return await self._file.write(work)

    async def claim_due_jobs(
        self,
        *,
        limit: int,
        claim_s: float,
        skip: Collection[str] = (),
        last: Sequence[str] = (),
    ) -> list[IndexJob]:
        now = self._now()
        # Read first: otherwise every server would write every few seconds, even with nothing due.
        if not await self._file.read(lambda db: has_due(db, now)):
            return []
        return await self._file.write(
            lambda db: claim_due(db, now=now, limit=limit, claim_s=claim_s, skip=skip, last=last)
        )

    async def extend_claim(self, job: IndexJob, seconds: float) -> bool:
        due_at = self._now() + seconds

        def work(db: apsw.Connection) -> bool:
            db.execute(
                f"UPDATE files SET due_at = ? WHERE {_JOB_IS_VALID}", (due_at, job.key, job.attempt)
            )
            return db.changes() > 0

        return await self._file.write(work)

    async def add_chunks(
        self, job: IndexJob, chunks: Sequence[TextChunk], vectors: Vectors | None, *, first: bool
    ) -> bool:
        def work(db: apsw.Connection) -> bool:
            if not rows_of(
                db, f"SELECT 1 FROM files WHERE {_JOB_IS_VALID}", (job.key, job.attempt)
            ):
                return False
            if first:
                erase_chunks(db, job.key, limit=-1)
                db.execute("UPDATE files SET usage_bytes = 0 WHERE key = ?", (job.key,))
            add_chunks(db, job.key, chunks, vectors)
            return True

        return await self._file.write(work)

    async def finish_job(self, job: IndexJob, error: IndexingError | None = None) -> bool:
        encoded_error = None if error is None else msgspec.json.encode(error)
        status = "completed" if error is None else "failed"

        def work(db: apsw.Connection) -> bool:
            db.execute(
                f"UPDATE files SET status = ?, last_error = ? WHERE {_JOB_IS_VALID}",
                (status, encoded_error, job.key, job.attempt),
            )
            return db.changes() > 0

        return await self._file.write(work)

    async def search(
        self,
        tenant: str,
        store_ids: Sequence[str],
        *,
        words: str,
        vectors: Vectors | None = None,
        file_filter: Filter | None = None,
        limit: int,
    ) -> list[Passage]:
        return await self._file.read(
            lambda db: search(db, tenant, store_ids, words, vectors, file_filter, limit),
            tenant=tenant,
        )

    async def sweep(self, now: float, *, limit: int) -> int:
        def work(db: apsw.Connection) -> int:
            db.execute(
                "UPDATE files SET is_removed = 1 WHERE NOT is_removed AND store IN"
                " (SELECT key FROM stores WHERE expires_at <= ?)",
                (now,),
            )
            return sweep_removed(db, limit)

        query = (
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM stores WHERE is_removed)"
            " OR EXISTS (SELECT 1 FROM files WHERE is_removed)"
            " OR EXISTS (SELECT 1 FROM tenants WHERE to_merge) OR EXISTS (SELECT 1 FROM stores s"
            " JOIN files f ON f.store = s.key AND NOT f.is_removed WHERE s.expires_at <= ?)"
        )
        if not await self._file.read(lambda db: rows_of(db, query, (now,))):
            return 0
        return await self._file.erase(work)
