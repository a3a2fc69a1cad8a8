"""Vector stores in the schema of the PostgreSQL store, for all servers that share it.

A chunk's number is that of its file, and its place there: 16 million fit in a file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from antiphon.adapters.stores.postgres import vector_statements as sql
from antiphon.adapters.stores.postgres.server import Connection, PostgresServer, Row, Work, columns
from antiphon.adapters.stores.postgres.vector_search import PostgresVectorSearch, words_of
from antiphon.adapters.stores.vectors import rows
from antiphon.adapters.stores.vectors.jobs import jobs_in_turn, tenants_in_turn
from antiphon.application.ports import FileToAdd, IndexJob, VectorPageQuery, Vectors, VectorStores
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.errors import NotFound, NotInList
from antiphon.domain.retrieval.file_filters import Filter
from antiphon.domain.retrieval.ranking import Passage
from antiphon.domain.retrieval.text_chunks import TextChunk
from antiphon.domain.retrieval.vector_stores import (
    FileBatch,
    IndexingError,
    Status,
    StoreFile,
    VectorStore,
    counts_of,
)

POOL = 6
"""Connections for vector stores, apart from those that runs need."""

PLACE_BITS = 24

ALL_CHUNKS = 1 << PLACE_BITS


class PostgresVectorStores(VectorStores):
    """Vector stores with a pool of connections of their own, half of it at most for one tenant."""

    def __init__(self, dsn: str, *, schema: str = "antiphon") -> None:
        self._server = PostgresServer(
            dsn, schema=schema, pool=POOL, start_timeout_s=5.0, run_timeout_s=20.0
        )
        self._slots = FairQueue(POOL, per_tenant=POOL // 2)
        self._search = PostgresVectorSearch(self._server)

    async def start(self) -> None:
        await self._server.start()

    async def aclose(self) -> None:
        await self._server.aclose()

    # --- vector stores ----------------------------------------------------------------------------

    async def create_store(self, tenant: str, store: VectorStore) -> None:
        values = (tenant, store.id, store.created_at, *rows.mutable_values(store))
        await self._write(tenant, sql.CREATE, *values)

    async def list_stores(
        self, tenant: str, query: VectorPageQuery | None = None
    ) -> list[VectorStore]:
        keys = await self._range_of(query, partial(self._number_of, tenant))
        statement = sql.LIST_STORES.format(order=keys.order)
        limit = None if query is None else query.limit
        found = await self._read(tenant, statement, tenant, keys.low, keys.high, limit)
        return keys.in_order(await self._with_totals(tenant, found))

    async def count_stores(self, tenant: str) -> int:
        [(count,)] = await self._read(tenant, sql.COUNT_STORES, tenant)
        return int(count)

    async def get_store(self, tenant: str, store_id: str) -> VectorStore:
        found = await self._read(tenant, sql.STORE, tenant, store_id)
        if not found:
            raise rows.store_not_found(store_id)
        return (await self._with_totals(tenant, found))[0]

    async def update_store(self, tenant: str, store: VectorStore) -> None:
        number = await self._number_of(tenant, store.id)
        await self._write(tenant, sql.UPDATE_STORE, number, *rows.mutable_values(store))

    async def touch_store(self, tenant: str, store: VectorStore) -> None:
        number = await self._number_of(tenant, store.id)
        times = (store.last_active_at, store.expires_at)
        await self._write(tenant, sql.TOUCH_STORE, number, *times)

    async def delete_store(self, tenant: str, store_id: str) -> None:
        await self._write(tenant, sql.REMOVE_STORE, await self._number_of(tenant, store_id))

    async def get_usage_bytes(self, tenant: str) -> int:
        [(size,)] = await self._read(tenant, sql.USAGE, tenant)
        return int(size)

    # --- files ------------------------------------------------------------------------------------

    async def create_files(
        self,
        tenant: str,
        store_id: str,
        files: Sequence[FileToAdd],
        *,
        batch: FileBatch | None = None,
    ) -> None:
        async def work(db: Connection) -> None:
            store = await db.fetchval(sql.LOCK_STORE, tenant, store_id)
            if store is None:
                raise rows.store_not_found(store_id)
            if batch is not None:
                await db.execute(sql.ADD_BATCH, batch.id, store, batch.created_at)
            # The last of several with one id replaces those before.
            added = [_columns_of(file) for file in {file.id: file for file in files}.values()]
            values = columns(added, 6)
            await db.execute(sql.REPLACE_FILES, store, values[0])
            await db.execute(sql.ADD_FILES, store, None if batch is None else batch.id, *values)

        await self._transaction(tenant, work)

    async def list_files(
        self,
        tenant: str,
        store_id: str,
        query: VectorPageQuery | None = None,
        *,
        batch_id: str | None = None,
        status: Status | None = None,
    ) -> list[StoreFile]:
        store = await self._number_of(tenant, store_id)
        if batch_id is not None:
            await self._batch_row(tenant, store, batch_id)
        keys = await self._range_of(query, partial(self._file_number, tenant, store, batch_id))
        statement = sql.FILES.format(order=keys.order)
        limit = None if query is None else query.limit
        values = (store, batch_id, status, keys.low, keys.high, limit)
        found = await self._read(tenant, statement, *values)
        return keys.in_order([rows.file_of(row) for row in found])

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> StoreFile:
        return await self._file(tenant, await self._number_of(tenant, store_id), file_id)

    async def update_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: dict[str, Any]
    ) -> StoreFile:
        store = await self._number_of(tenant, store_id)
        encoded = msgspec.json.encode(attributes)
        await self._write(tenant, sql.SET_ATTRIBUTES, store, file_id, encoded)
        return await self._file(tenant, store, file_id)

    async def delete_file(self, tenant: str, store_id: str, file_id: str) -> None:
        store = await self._number_of(tenant, store_id)
        if not await self._write(tenant, sql.REMOVE_FILE, store, file_id):
            raise rows.file_not_found(file_id)

    async def delete_file_everywhere(self, tenant: str, file_id: str) -> None:
        await self._write(tenant, sql.FORGET_FILE, tenant, file_id)

    async def get_texts(self, tenant: str, store_id: str, file_id: str) -> list[str]:
        store = await self._number_of(tenant, store_id)
        await self._file(tenant, store, file_id)
        chunks = await self._read(tenant, sql.TEXTS, store, file_id)
        return [text[overlap_chars:] for text, overlap_chars in chunks]

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        store = await self._number_of(tenant, store_id)
        created_at, is_cancelled = await self._batch_row(tenant, store, batch_id)
        counted = await self._read(tenant, sql.COUNT_BATCH, batch_id)
        counts = counts_of({row[0]: row[1] for row in counted})
        return rows.batch_of(batch_id, store_id, created_at, counts, is_cancelled=is_cancelled)

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        store = await self._number_of(tenant, store_id)
        await self._batch_row(tenant, store, batch_id)
        await self._write(tenant, sql.CANCEL_BATCH, batch_id)
        return await self.get_batch(tenant, store_id, batch_id)

    # --- jobs -------------------------------------------------------------------------------------

    async def claim_due_jobs(
        self,
        *,
        limit: int,
        claim_s: float,
        skip: Collection[str] = (),
        last: Sequence[str] = (),
    ) -> list[IndexJob]:
        # Read first: otherwise every server would take the lock every few seconds.
        if not await self._server.fetch(sql.DUE_TENANTS, idempotent=True):
            return []

        async def work(db: Connection) -> list[Row]:
            await db.execute(sql.LOCK_JOBS, f"antiphon jobs {self._server.schema}")
            tenants = tenants_in_turn(await db.fetch(sql.DUE_TENANTS), skip, last)[:limit]
            by_tenant: list[list[Row]] = [
                await db.fetch(sql.DUE_JOBS, number, limit) for number in tenants
            ]
            due = jobs_in_turn(by_tenant, limit)
            await db.execute(sql.CLAIM, [row[0] for row in due], claim_s)
            return due

        return [rows.job_of(row) for row in await self._server.in_transaction(work)]

    async def extend_claim(self, job: IndexJob, seconds: float) -> bool:
        return bool(await self._write(job.tenant, sql.EXTEND_CLAIM, job.key, job.attempt, seconds))

    async def add_chunks(
        self, job: IndexJob, chunks: Sequence[TextChunk], vectors: Vectors | None, *, first: bool
    ) -> bool:
        work = partial(_add_chunks, job, chunks, vectors, first)
        return bool(await self._transaction(job.tenant, work))

    async def finish_job(self, job: IndexJob, error: IndexingError | None = None) -> bool:
        status = "completed" if error is None else "failed"
        encoded = None if error is None else msgspec.json.encode(error)
        values = (job.key, job.attempt, status, encoded)
        return bool(await self._write(job.tenant, sql.FINISH, *values))

    # --- search and erasure -----------------------------------------------------------------------

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
        async with self._slots.slot(tenant):
            return await self._search(
                tenant,
                store_ids,
                words=words,
                vectors=vectors,
                file_filter=file_filter,
                limit=limit,
            )

    async def sweep(self, now: float, *, limit: int) -> int:
        await self._server.fetch(sql.EXPIRE_FILES, int(now), timeouts=self._server.run_timeouts)
        swept = 0
        for number, tenant in await self._server.fetch(sql.REMOVED_FILES, limit):
            [(count,)] = await self._server.fetch(
                sql.ERASE_CHUNKS, number, tenant, limit - swept, timeouts=self._server.run_timeouts
            )
            swept += int(count)
            if swept >= limit:  # the file may have more chunks
                return swept
            await self._server.fetch(sql.ERASE_FILE, number)
            swept += 1
        return swept + len(await self._server.fetch(sql.ERASE_STORES, limit))

    # --- rows -------------------------------------------------------------------------------------

    async def _number_of(self, tenant: str, store_id: str) -> int:
        for (number,) in await self._read(tenant, sql.STORE_NUMBER, tenant, store_id):
            return int(number)
        raise rows.store_not_found(store_id)

    async def _file_number(
        self, tenant: str, store: int, batch_id: str | None, file_id: str
    ) -> int:
        for (number,) in await self._read(tenant, sql.FILE_NUMBER, store, file_id, batch_id):
            return int(number)
        raise rows.file_not_found(file_id)

    async def _range_of(
        self, query: VectorPageQuery | None, number_of: Callable[[str], Awaitable[int]]
    ) -> rows.KeyRange:
        """Return the numbers of a page, or of the whole list. Raises: NotInList."""
        if query is None:
            return rows.range_between(None, None, is_descending=False)
        after, before = [
            None if each is None else await _number_in_list(each, name, number_of)
            for each, name in ((query.after, "after"), (query.before, "before"))
        ]
        return rows.range_between(after, before, is_descending=query.is_descending)

    async def _with_totals(self, tenant: str, stores: Sequence[Row]) -> list[VectorStore]:
        counted = await self._read(tenant, sql.COUNT_FILES, [row[0] for row in stores])
        counts: dict[int, dict[str, int]] = {}
        sizes: dict[int, int] = {}
        for number, status, count, size in counted:
            counts.setdefault(number, {})[status] = count
            sizes[number] = sizes.get(number, 0) + size
        return [rows.store_of(row, counts.get(row[0], {}), sizes.get(row[0], 0)) for row in stores]

    async def _file(self, tenant: str, store: int, file_id: str) -> StoreFile:
        for row in await self._read(tenant, sql.FILE, store, file_id):
            return rows.file_of(row)
        raise rows.file_not_found(file_id)

    async def _batch_row(self, tenant: str, store: int, batch_id: str) -> Row:
        for row in await self._read(tenant, sql.BATCH, store, batch_id):
            return row
        raise rows.batch_not_found(batch_id)

    async def _read(self, tenant: str, query: str, *values: object) -> list[Row]:
        async with self._slots.slot(tenant):
            return await self._server.fetch(query, *values, idempotent=True)

    async def _write(self, tenant: str, statement: str, *values: object) -> list[Row]:
        async with self._slots.slot(tenant):
            return await self._server.fetch(statement, *values, timeouts=self._server.run_timeouts)

    async def _transaction(self, tenant: str, work: Work[Any]) -> Any:
        async with self._slots.slot(tenant):
            return await self._server.in_transaction(work, timeouts=self._server.run_timeouts)


async def _number_in_list(name: str, param: str, number_of: Callable[[str], Awaitable[int]]) -> int:
    try:
        return await number_of(name)
    except NotFound:
        raise NotInList(name, param) from None


def _columns_of(file: FileToAdd) -> Row:
    return (
        file.id,
        file.filename,
        file.created_at,
        msgspec.json.encode(file.attributes),
        file.sizes.max_chunk_size_tokens,
        file.sizes.chunk_overlap_tokens,
    )


async def _add_chunks(
    job: IndexJob,
    chunks: Sequence[TextChunk],
    vectors: Vectors | None,
    first: bool,
    db: Connection,
) -> bool:
    row = await db.fetchrow(sql.LOCK_JOB, job.key, job.attempt)
    if row is None:
        return False
    tenant, count = row
    if first:
        await db.fetch(sql.ERASE_CHUNKS, job.key, tenant, ALL_CHUNKS)
        await db.execute(sql.RESET_FILE, job.key)
        count = 0
    number = (job.key << PLACE_BITS) + count
    added = [
        (place, chunk.overlap_chars, chunk.text, " ".join(words_of(chunk.text)))
        for place, chunk in enumerate(chunks, number)
    ]
    content = b"".join(vectors.each) if vectors is not None else b""
    size = sum(len(chunk.text.encode()) for chunk in chunks) + len(content)
    await db.execute(sql.ADD_CHUNKS, job.key, tenant, *columns(added, 4), size)
    if vectors is not None:
        values = (job.key, number, len(vectors.each), vectors.model, content)
        await db.execute(sql.ADD_VECTORS, *values)
    return True
