"""Conversion of vector stores, files and batches to and from rows, and the queries for SQLite."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import apsw
import msgspec
from msgspec import Struct

from antiphon.adapters.stores.sqlite.file import Row, rows_of
from antiphon.application.ports import FileToAdd, IndexJob, VectorPageQuery
from antiphon.domain.errors import NotFound, NotInList
from antiphon.domain.retrieval.vector_stores import (
    ChunkSizes,
    ExpiresAfter,
    FileBatch,
    FileCounts,
    IndexingError,
    StaticChunking,
    Status,
    StoreFile,
    VectorStore,
    counts_of,
)

T = TypeVar("T")

_STORE = """SELECT s.key FROM stores s JOIN tenants t ON t.key = s.tenant
    WHERE t.name = ? AND s.id = ? AND NOT s.is_removed"""
_STORES = """SELECT s.key, s.id, s.created_at, s.last_active_at, s.expires_at, s.body
    FROM stores s"""
_FILE = """SELECT f.id, s.id, f.created_at, f.status, f.last_error, f.usage_bytes, f.attributes,
        f.chunk_size, f.overlap
    FROM files f JOIN stores s ON s.key = f.store"""


class StoreDescription(Struct, frozen=True, kw_only=True):
    """The fields of a vector store that are stored as JSON."""

    name: str
    description: str | None
    expires_after: ExpiresAfter | None
    metadata: dict[str, str]


_decode_description = msgspec.json.Decoder(StoreDescription).decode
_decode_error = msgspec.json.Decoder(IndexingError).decode
decode_attributes = msgspec.json.Decoder(dict[str, Any]).decode


def mutable_values(store: VectorStore) -> Row:
    description = StoreDescription(
        name=store.name,
        description=store.description,
        expires_after=store.expires_after,
        metadata=store.metadata,
    )
    return store.last_active_at, store.expires_at, msgspec.json.encode(description)


def store_not_found(store_id: str) -> NotFound:
    return NotFound(f"Vector store with id {store_id[:100]!r} not found.", param="vector_store_id")


def file_not_found(file_id: str) -> NotFound:
    return NotFound(f"No file with id {file_id[:100]!r} in the vector store.", param="file_id")


def batch_not_found(batch_id: str) -> NotFound:
    return NotFound(f"File batch with id {batch_id[:100]!r} not found.", param="batch_id")


def store_key(db: apsw.Connection, tenant: str, store_id: str) -> int:
    for (key,) in rows_of(db, _STORE, (tenant, store_id)):
        return int(key)
    raise store_not_found(store_id)


def read_store(db: apsw.Connection, tenant: str, store_id: str) -> VectorStore:
    key = store_key(db, tenant, store_id)
    stores = rows_of(db, f"{_STORES} WHERE s.key = ?", (key,))
    return _with_totals(db, stores)[0]


def read_stores(
    db: apsw.Connection, tenant: str, query: VectorPageQuery | None
) -> list[VectorStore]:
    """Return all vector stores, or a page of them. Raises: NotInList."""
    keys = key_range(query, lambda store_id: store_key(db, tenant, store_id))
    stores = rows_of(
        db,
        f"{_STORES} JOIN tenants t ON t.key = s.tenant WHERE t.name = ? AND NOT s.is_removed"
        f" AND s.key > ? AND s.key < ? ORDER BY s.key {keys.order} LIMIT ?",
        (tenant, keys.low, keys.high, -1 if query is None else query.limit),
    )
    return keys.in_order(_with_totals(db, stores))


def _with_totals(db: apsw.Connection, stores: Sequence[Row]) -> list[VectorStore]:
    totals = _count_files(db, [row[0] for row in stores])
    return [store_of(row, *totals.get(row[0], ({}, 0))) for row in stores]


def _count_files(
    db: apsw.Connection, keys: Sequence[int]
) -> Mapping[int, tuple[dict[str, int], int]]:
    """Return, for each store, the number of files by status and the bytes of all of them."""
    totals: dict[int, tuple[dict[str, int], int]] = {}
    for key, status, count, size in rows_of(
        db,
        "SELECT store, status, count(*), sum(usage_bytes) FROM files"
        " WHERE store IN (SELECT value FROM json_each(?)) AND NOT is_removed"
        " GROUP BY store, status",
        (json.dumps(keys),),
    ):
        counts, total_size = totals.get(key, ({}, 0))
        totals[key] = ({**counts, status: count}, total_size + size)
    return totals


def store_of(row: Sequence[Any], counts: dict[str, int], usage_bytes: int) -> VectorStore:
    _, store_id, created_at, last_active_at, expires_at, encoded = row
    description = _decode_description(encoded)
    return VectorStore(
        id=store_id,
        created_at=created_at,
        last_active_at=last_active_at,
        expires_at=expires_at,
        name=description.name,
        description=description.description,
        expires_after=description.expires_after,
        metadata=description.metadata,
        usage_bytes=usage_bytes,
        file_counts=counts_of(counts),
        status="in_progress" if counts.get("in_progress") else "completed",
    )


def insert_file(
    db: apsw.Connection, store: int, file: FileToAdd, batch: FileBatch | None, now: float
) -> None:
    db.execute(
        "INSERT INTO files (store, tenant, id, filename, created_at, status, attributes,"
        " chunk_size, overlap, batch, due_at)"
        " SELECT key, tenant, ?, ?, ?, 'in_progress', ?, ?, ?, ?, ? FROM stores WHERE key = ?",
        (
            file.id,
            file.filename,
            file.created_at,
            msgspec.json.encode(file.attributes),
            file.sizes.max_chunk_size_tokens,
            file.sizes.chunk_overlap_tokens,
            None if batch is None else batch.id,
            now,
            store,
        ),
    )


def remove_file(db: apsw.Connection, store: int, file_id: str) -> None:
    db.execute("UPDATE files SET is_removed = 1 WHERE store = ? AND id = ?", (store, file_id))


def read_files(
    db: apsw.Connection,
    store: int,
    query: VectorPageQuery | None,
    *,
    batch_id: str | None,
    status: Status | None,
) -> list[StoreFile]:
    """Return all files, or a page of them. Raises: NotInList."""
    conditions: dict[str, Any] = {"f.store = ?": store}
    if batch_id is not None:  # the plus keeps SQLite from looking at all files of the store
        conditions = {"f.batch = ?": batch_id, "+f.store = ?": store}
    keys = key_range(query, lambda file_id: _file_key(db, conditions, file_id))
    if status is not None:
        conditions["f.status = ?"] = status
    conditions |= {"f.key > ?": keys.low, "f.key < ?": keys.high}
    found = rows_of(
        db,
        f"{_FILE} WHERE NOT f.is_removed AND {' AND '.join(conditions)}"
        f" ORDER BY f.key {keys.order} LIMIT ?",
        (*conditions.values(), -1 if query is None else query.limit),
    )
    return keys.in_order([file_of(row) for row in found])


def _file_key(db: apsw.Connection, conditions: Mapping[str, Any], file_id: str) -> int:
    query = (
        "SELECT f.key FROM files f WHERE NOT f.is_removed AND f.id = ?"
        f" AND {' AND '.join(conditions)}"
    )
    for (key,) in rows_of(db, query, (file_id, *conditions.values())):
        return int(key)
    raise file_not_found(file_id)


def read_file(db: apsw.Connection, store: int, file_id: str) -> StoreFile:
    query = f"{_FILE} WHERE f.store = ? AND f.id = ? AND NOT f.is_removed"
    for row in rows_of(db, query, (store, file_id)):
        return file_of(row)
    raise file_not_found(file_id)


# --- pages ----------------------------------------------------------------------------------------


class KeyRange(Struct, frozen=True):
    """The keys between `low` and `high`, to be read in this order; a page may be read backwards."""

    low: int
    high: int
    order: Literal["ASC", "DESC"]
    is_backwards: bool

    def in_order(self, page: list[T]) -> list[T]:
        return page[::-1] if self.is_backwards else page


def key_range(query: VectorPageQuery | None, key_of: Callable[[str], int]) -> KeyRange:
    """Return the keys of a page, or of the whole list. Raises: NotInList."""
    if query is None:
        return range_between(None, None, is_descending=False)
    after, before = (
        None if each is None else _key_in_list(each, name, key_of)
        for each, name in ((query.after, "after"), (query.before, "before"))
    )
    return range_between(after, before, is_descending=query.is_descending)


def range_between(after: int | None, before: int | None, *, is_descending: bool) -> KeyRange:
    """Return the range of a page that begins after one key, and ends before another."""
    is_backwards = before is not None and after is None
    low, high = (before, after) if is_descending else (after, before)
    return KeyRange(
        low=-1 if low is None else low,
        high=2**62 if high is None else high,
        order="DESC" if is_descending is not is_backwards else "ASC",
        is_backwards=is_backwards,
    )


def _key_in_list(name: str, param: str, key_of: Callable[[str], int]) -> int:
    try:
        return key_of(name)
    except NotFound:
        raise NotInList(name, param) from None


def file_of(row: Sequence[Any]) -> StoreFile:
    file_id, store_id, created_at, status, error, usage_bytes, attributes, size, overlap = row
    sizes = ChunkSizes(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap)
    return StoreFile(
        id=file_id,
        created_at=created_at,
        vector_store_id=store_id,
        status=status,
        last_error=None if error is None else _decode_error(error),
        usage_bytes=usage_bytes,
        attributes=decode_attributes(attributes),
        chunking_strategy=StaticChunking(static=sizes),
    )


def batch_row(db: apsw.Connection, store: int, batch_id: str) -> Row:
    query = "SELECT created_at, is_cancelled FROM batches WHERE store = ? AND id = ?"
    for row in rows_of(db, query, (store, batch_id)):
        return row
    raise batch_not_found(batch_id)


def read_batch(db: apsw.Connection, store: int, store_id: str, batch_id: str) -> FileBatch:
    query = "SELECT status, count(*) FROM files WHERE batch = ? AND NOT is_removed GROUP BY status"
    created_at, is_cancelled = batch_row(db, store, batch_id)
    counts = counts_of(dict(rows_of(db, query, (batch_id,))))
    return batch_of(batch_id, store_id, created_at, counts, is_cancelled=bool(is_cancelled))


def batch_of(
    batch_id: str, store_id: str, created_at: int, counts: FileCounts, *, is_cancelled: bool
) -> FileBatch:
    return FileBatch(
        id=batch_id,
        created_at=created_at,
        vector_store_id=store_id,
        file_counts=counts,
        status=_batch_status(counts, is_cancelled=is_cancelled),
    )


def _batch_status(counts: FileCounts, *, is_cancelled: bool) -> Status:
    if is_cancelled:
        return "cancelled"
    if counts.in_progress:
        return "in_progress"
    return "failed" if counts.total and counts.failed == counts.total else "completed"


def job_of(row: Sequence[Any]) -> IndexJob:
    key, attempt, tenant, file_id, filename, size, overlap = row
    return IndexJob(
        key=key,
        attempt=attempt,
        tenant=tenant,
        file_id=file_id,
        filename=filename,
        sizes=ChunkSizes(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap),
    )
