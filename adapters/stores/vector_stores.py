"""Vector stores in SQLite: a file of its own beside the uploaded files, or in memory.

Words are searched by FTS5, a table for each tenant. Vectors are compared one by one with that of
the query (numpy): for some ten thousand chunks nothing is faster than reading them in a row.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.stores.sqlite_file import Row, SqliteFile, SqliteMemory, rows_of
from antiphon.application.ports import FileToAdd, IndexJob, Vectors, VectorStores
from antiphon.domain.errors import NotFound
from antiphon.domain.file_filters import Filter
from antiphon.domain.ranking import Passage
from antiphon.domain.text_chunks import TextChunk, add_spaces
from antiphon.domain.vector_stores import (
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

MIGRATIONS = "vector_stores"
TOKENIZER = ("porter", "unicode61", "remove_diacritics", "2")
MOST_WORDS = 32
"""Different words of a query that are searched for, the first ones."""

MERGED_PAGES = 500
"""How much of an index is merged in one transaction."""

FLOAT_BYTES = 4
K1, B = 1.2, 0.75
"""BM25, with the values that FTS5 has."""

_WORD = re.compile(r"\w+")

_STORE = """SELECT s.key FROM stores s JOIN tenants t ON t.key = s.tenant
    WHERE t.name = ? AND s.id = ? AND NOT s.is_removed"""
_FILE = """SELECT f.id, s.id, f.created_at, f.status, f.last_error, f.usage_bytes, f.attributes,
        f.chunk_size, f.overlap
    FROM files f JOIN stores s ON s.key = f.store"""
_ALIVE = "key = ? AND attempts = ? AND status = 'in_progress' AND NOT is_removed"


class Described(Struct, frozen=True, kw_only=True):
    """What of a vector store is kept as JSON."""

    name: str
    description: str | None
    expires_after: ExpiresAfter | None
    metadata: dict[str, str]


_decode_description = msgspec.json.Decoder(Described).decode
_decode_error = msgspec.json.Decoder(IndexingError).decode
_decode_attributes = msgspec.json.Decoder(dict[str, Any]).decode


class SqliteVectorStores(VectorStores):
    """Safe for several servers of one machine. Without a path, all is in memory."""

    def __init__(self, path: Path | None, *, now: Callable[[], float] = time.time) -> None:
        self._file: SqliteFile | SqliteMemory = (
            SqliteMemory(migrations=MIGRATIONS, prepare=_add_share)
            if path is None
            else SqliteFile(path, migrations=MIGRATIONS, prepare=_add_share)
        )
        self._now = now

    async def start(self) -> None:
        # What dead servers had in hand need not wait until it is due again.
        query = "UPDATE files SET due_at = 0 WHERE status = 'in_progress'"
        await self._file.start(alone=lambda db: db.execute(query).fetchall())

    async def aclose(self) -> None:
        await self._file.aclose()

    async def create(self, tenant: str, store: VectorStore) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO tenants (name) VALUES (?)", (tenant,))
            db.execute(
                "INSERT INTO stores (tenant, id, created_at, last_active_at, expires_at, described)"
                " SELECT key, ?, ?, ?, ?, ? FROM tenants WHERE name = ?",
                (store.id, store.created_at, *_changing(store), tenant),
            )

        await self._file.write(work)

    async def list_all(self, tenant: str) -> list[VectorStore]:
        return await self._file.read(lambda db: _stores(db, tenant))

    async def get(self, tenant: str, store_id: str) -> VectorStore:
        def work(db: apsw.Connection) -> VectorStore:
            _store_key(db, tenant, store_id)
            return _stores(db, tenant, store_id)[0]

        return await self._file.read(work)

    async def update(self, tenant: str, store: VectorStore) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE stores SET last_active_at = ?, expires_at = ?, described = ? WHERE key = ?",
                (*_changing(store), _store_key(db, tenant, store.id)),
            )

        await self._file.write(work)

    async def touch(self, tenant: str, store: VectorStore) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE stores SET last_active_at = ?, expires_at = ? WHERE key = ?",
                (store.last_active_at, store.expires_at, _store_key(db, tenant, store.id)),
            )

        await self._file.write(work)

    async def usage_bytes(self, tenant: str) -> int:
        query = (
            "SELECT coalesce(sum(f.usage_bytes), 0) FROM files f JOIN stores s ON s.key = f.store"
            " JOIN tenants t ON t.key = s.tenant WHERE t.name = ? AND NOT f.is_removed"
        )
        [(size,)] = await self._file.read(lambda db: rows_of(db, query, (tenant,)))
        return int(size)

    async def delete(self, tenant: str, store_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            key = _store_key(db, tenant, store_id)
            db.execute("UPDATE stores SET is_removed = 1 WHERE key = ?", (key,))
            db.execute("UPDATE files SET is_removed = 1 WHERE store = ?", (key,))

        await self._file.write(work)

    async def add_files(
        self,
        tenant: str,
        store_id: str,
        files: Sequence[FileToAdd],
        *,
        batch: FileBatch | None = None,
    ) -> None:
        now = self._now()

        def work(db: apsw.Connection) -> None:
            store = _store_key(db, tenant, store_id)
            _make_index(db, store)
            if batch is not None:
                db.execute(
                    "INSERT INTO batches (id, store, created_at) VALUES (?, ?, ?)",
                    (batch.id, store, batch.created_at),
                )
            for each in files:
                _remove(db, store, each.id)
                _insert(db, store, each, batch, now)

        await self._file.write(work)

    async def files(
        self, tenant: str, store_id: str, *, batch_id: str | None = None
    ) -> list[StoreFile]:
        def work(db: apsw.Connection) -> list[StoreFile]:
            key = _store_key(db, tenant, store_id)
            if batch_id is not None:
                _batch_row(db, key, batch_id)
            return _files(db, key, "AND f.batch = ?" if batch_id else "", *filter(None, [batch_id]))

        return await self._file.read(work)

    async def file(self, tenant: str, store_id: str, file_id: str) -> StoreFile:
        return await self._file.read(
            lambda db: _one_file(db, _store_key(db, tenant, store_id), file_id)
        )

    async def set_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: dict[str, Any]
    ) -> StoreFile:
        def work(db: apsw.Connection) -> StoreFile:
            store = _store_key(db, tenant, store_id)
            db.execute(
                "UPDATE files SET attributes = ? WHERE store = ? AND id = ? AND NOT is_removed",
                (msgspec.json.encode(attributes), store, file_id),
            )
            return _one_file(db, store, file_id)

        return await self._file.write(work)

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            store = _store_key(db, tenant, store_id)
            _one_file(db, store, file_id)
            _remove(db, store, file_id)

        await self._file.write(work)

    async def forget_file(self, tenant: str, file_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute(
                "UPDATE files SET is_removed = 1 WHERE id = ? AND store IN (SELECT s.key FROM"
                " stores s JOIN tenants t ON t.key = s.tenant WHERE t.name = ?)",
                (file_id, tenant),
            )

        await self._file.write(work)

    async def texts(self, tenant: str, store_id: str, file_id: str) -> list[str]:
        def work(db: apsw.Connection) -> list[str]:
            store = _store_key(db, tenant, store_id)
            _one_file(db, store, file_id)
            found = rows_of(
                db,
                "SELECT c.text, c.repeats FROM chunks c JOIN files f ON f.key = c.file"
                " WHERE f.store = ? AND f.id = ? AND NOT f.is_removed AND f.status = 'completed'"
                " ORDER BY c.key",
                (store, file_id),
            )
            return [text[overlap_chars:] for text, overlap_chars in found]

        return await self._file.read(work)

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        return await self._file.read(
            lambda db: _batch(db, _store_key(db, tenant, store_id), store_id, batch_id)
        )

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        def work(db: apsw.Connection) -> FileBatch:
            store = _store_key(db, tenant, store_id)
            _batch_row(db, store, batch_id)
            db.execute("UPDATE batches SET is_cancelled = 1 WHERE id = ?", (batch_id,))
            db.execute(
                "UPDATE files SET status = 'cancelled' WHERE batch = ? AND status = 'in_progress'"
                " AND NOT is_removed",
                (batch_id,),
            )
            return _batch(db, store, store_id, batch_id)

        return await self._file.write(work)

    async def claim_due(self, *, limit: int, claim_s: float) -> list[IndexJob]:
        now = self._now()

        def work(db: apsw.Connection) -> list[IndexJob]:
            found = rows_of(
                db,
                "SELECT f.key, f.attempts + 1, t.name, f.id, f.filename, f.chunk_size, f.overlap"
                " FROM files f JOIN stores s ON s.key = f.store JOIN tenants t ON t.key = s.tenant"
                " WHERE f.status = 'in_progress' AND NOT f.is_removed AND f.due_at <= ?"
                " ORDER BY f.due_at, f.key LIMIT ?",
                (now, limit),
            )
            for key, attempt, *_ in found:
                db.execute(
                    "UPDATE files SET due_at = ?, attempts = ? WHERE key = ?",
                    (now + claim_s, attempt, key),
                )
            return [_job(row) for row in found]

        # Looked for among the readers first: a write that finds nothing would be a write all the
        # same, for every server, every few seconds.
        query = (
            "SELECT 1 FROM files WHERE status = 'in_progress' AND NOT is_removed AND due_at <= ?"
        )
        if not await self._file.read(lambda db: rows_of(db, query, (now,))):
            return []
        return await self._file.write(work)

    async def extend_claim(self, job: IndexJob, seconds: float) -> bool:
        until = self._now() + seconds

        def work(db: apsw.Connection) -> bool:
            db.execute(f"UPDATE files SET due_at = ? WHERE {_ALIVE}", (until, job.key, job.attempt))
            return db.changes() > 0

        return await self._file.write(work)

    async def add_chunks(
        self, job: IndexJob, chunks: Sequence[TextChunk], vectors: Vectors | None, *, first: bool
    ) -> bool:
        def work(db: apsw.Connection) -> bool:
            if not rows_of(db, f"SELECT 1 FROM files WHERE {_ALIVE}", (job.key, job.attempt)):
                return False
            if first:
                _erase_chunks(db, job.key, limit=-1)
                db.execute("UPDATE files SET usage_bytes = 0 WHERE key = ?", (job.key,))
            _add_chunks(db, job.key, chunks, vectors)
            return True

        return await self._file.write(work)

    async def finish(self, job: IndexJob, error: IndexingError | None = None) -> bool:
        told = None if error is None else msgspec.json.encode(error)
        status = "completed" if error is None else "failed"

        def work(db: apsw.Connection) -> bool:
            db.execute(
                f"UPDATE files SET status = ?, last_error = ? WHERE {_ALIVE}",
                (status, told, job.key, job.attempt),
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
        fits: Filter | None = None,
        most: int,
    ) -> list[Passage]:
        return await self._file.read(
            lambda db: _search(db, tenant, store_ids, words, vectors, fits, most)
        )

    async def sweep(self, now: float, *, limit: int) -> int:
        def work(db: apsw.Connection) -> int:
            db.execute(
                "UPDATE files SET is_removed = 1 WHERE NOT is_removed AND store IN"
                " (SELECT key FROM stores WHERE expires_at <= ?)",
                (now,),
            )
            return _sweep(db, limit)

        query = (
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM stores WHERE is_removed)"
            " OR EXISTS (SELECT 1 FROM files WHERE is_removed)"
            " OR EXISTS (SELECT 1 FROM tenants WHERE to_merge) OR EXISTS (SELECT 1 FROM stores s"
            " JOIN files f ON f.store = s.key AND NOT f.is_removed WHERE s.expires_at <= ?)"
        )
        if not await self._file.read(lambda db: rows_of(db, query, (now,))):
            return 0
        return await self._file.erase(work)


# --- rows -----------------------------------------------------------------------------------------


def _changing(store: VectorStore) -> Row:
    described = Described(
        name=store.name,
        description=store.description,
        expires_after=store.expires_after,
        metadata=store.metadata,
    )
    return store.last_active_at, store.expires_at, msgspec.json.encode(described)


def _store_key(db: apsw.Connection, tenant: str, store_id: str) -> int:
    for (key,) in rows_of(db, _STORE, (tenant, store_id)):
        return int(key)
    raise NotFound(f"Vector store with id {store_id[:100]!r} not found.", param="vector_store_id")


def _stores(db: apsw.Connection, tenant: str, *ids: str) -> list[VectorStore]:
    found = rows_of(
        db,
        "SELECT s.key, s.id, s.created_at, s.last_active_at, s.expires_at, s.described"
        " FROM stores s JOIN tenants t ON t.key = s.tenant"
        f" WHERE t.name = ? AND NOT s.is_removed {'AND s.id = ?' if ids else ''} ORDER BY s.key",
        (tenant, *ids),
    )
    counted = _counted(db, [row[0] for row in found])
    return [_store(row, *counted.get(row[0], ({}, 0))) for row in found]


def _counted(db: apsw.Connection, keys: Sequence[int]) -> Mapping[int, tuple[dict[str, int], int]]:
    found: dict[int, tuple[dict[str, int], int]] = {}
    for key, status, count, size in rows_of(
        db,
        "SELECT store, status, count(*), sum(usage_bytes) FROM files"
        " WHERE store IN (SELECT value FROM json_each(?)) AND NOT is_removed"
        " GROUP BY store, status",
        (json.dumps(keys),),
    ):
        counts, bytes_before = found.get(key, ({}, 0))
        found[key] = ({**counts, status: count}, bytes_before + size)
    return found


def _store(row: Row, counts: dict[str, int], usage_bytes: int) -> VectorStore:
    _, store_id, created_at, last_active_at, expires_at, described = row
    known = _decode_description(described)
    return VectorStore(
        id=store_id,
        created_at=created_at,
        last_active_at=last_active_at,
        expires_at=expires_at,
        name=known.name,
        description=known.description,
        expires_after=known.expires_after,
        metadata=known.metadata,
        usage_bytes=usage_bytes,
        file_counts=counts_of(counts),
        status="in_progress" if counts.get("in_progress") else "completed",
    )


def _insert(
    db: apsw.Connection, store: int, file: FileToAdd, batch: FileBatch | None, now: float
) -> None:
    db.execute(
        "INSERT INTO files (store, id, filename, created_at, status, attributes, chunk_size,"
        " overlap, batch, due_at) VALUES (?, ?, ?, ?, 'in_progress', ?, ?, ?, ?, ?)",
        (
            store,
            file.id,
            file.filename,
            file.created_at,
            msgspec.json.encode(file.attributes),
            file.sizes.max_chunk_size_tokens,
            file.sizes.chunk_overlap_tokens,
            None if batch is None else batch.id,
            now,
        ),
    )


def _remove(db: apsw.Connection, store: int, file_id: str) -> None:
    db.execute("UPDATE files SET is_removed = 1 WHERE store = ? AND id = ?", (store, file_id))


def _files(db: apsw.Connection, store: int, condition: str = "", *values: Any) -> list[StoreFile]:
    query = f"{_FILE} WHERE f.store = ? AND NOT f.is_removed {condition} ORDER BY f.key"
    return [_file_of(row) for row in rows_of(db, query, (store, *values))]


def _one_file(db: apsw.Connection, store: int, file_id: str) -> StoreFile:
    for found in _files(db, store, "AND f.id = ?", file_id):
        return found
    raise NotFound(f"No file with id {file_id[:100]!r} in the vector store.", param="file_id")


def _file_of(row: Row) -> StoreFile:
    file_id, store_id, created_at, status, error, usage_bytes, attributes, size, overlap = row
    sizes = ChunkSizes(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap)
    return StoreFile(
        id=file_id,
        created_at=created_at,
        vector_store_id=store_id,
        status=status,
        last_error=None if error is None else _decode_error(error),
        usage_bytes=usage_bytes,
        attributes=_decode_attributes(attributes),
        chunking_strategy=StaticChunking(static=sizes),
    )


def _batch_row(db: apsw.Connection, store: int, batch_id: str) -> Row:
    query = "SELECT created_at, is_cancelled FROM batches WHERE store = ? AND id = ?"
    for row in rows_of(db, query, (store, batch_id)):
        return row
    raise NotFound(f"File batch with id {batch_id[:100]!r} not found.", param="batch_id")


def _batch(db: apsw.Connection, store: int, store_id: str, batch_id: str) -> FileBatch:
    created_at, is_cancelled = _batch_row(db, store, batch_id)
    query = "SELECT status, count(*) FROM files WHERE batch = ? AND NOT is_removed GROUP BY status"
    counts = counts_of(dict(rows_of(db, query, (batch_id,))))
    return FileBatch(
        id=batch_id,
        created_at=created_at,
        vector_store_id=store_id,
        file_counts=counts,
        status=_batch_status(counts, is_cancelled=bool(is_cancelled)),
    )


def _batch_status(counts: FileCounts, *, is_cancelled: bool) -> Status:
    if is_cancelled:
        return "cancelled"
    if counts.in_progress:
        return "in_progress"
    return "failed" if counts.total and counts.failed == counts.total else "completed"


def _job(row: Row) -> IndexJob:
    key, attempt, tenant, file_id, filename, size, overlap = row
    return IndexJob(
        key=key,
        attempt=attempt,
        tenant=tenant,
        file_id=file_id,
        filename=filename,
        sizes=ChunkSizes(max_chunk_size_tokens=size, chunk_overlap_tokens=overlap),
    )


# --- the index ------------------------------------------------------------------------------------


def _make_index(db: apsw.Connection, store: int) -> None:
    [(tenant,)] = rows_of(db, "SELECT tenant FROM stores WHERE key = ?", (store,))
    name = _index(tenant)
    if rows_of(db, "SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)):
        return
    db.execute(
        f"CREATE VIRTUAL TABLE {name} USING fts5(scope, text, content='',"
        f" tokenize='{' '.join(TOKENIZER)}')"
    )


def _index(tenant: int) -> str:
    return f"words_{tenant}"


def _scope(store: int) -> str:
    """Return the word that every chunk of a store has in the index."""
    return f"s{store}"


def _place(db: apsw.Connection, file: int) -> tuple[str, str]:
    """Return the index and the scope of a file."""
    query = "SELECT s.tenant, s.key FROM files f JOIN stores s ON s.key = f.store WHERE f.key = ?"
    [(tenant, store)] = rows_of(db, query, (file,))
    return _index(tenant), _scope(store)


def _add_chunks(
    db: apsw.Connection, file: int, chunks: Sequence[TextChunk], vectors: Vectors | None
) -> None:
    index, scope = _place(db, file)
    [(first,)] = rows_of(db, "SELECT coalesce(max(key), 0) + 1 FROM chunks", ())
    size = 0
    for key, chunk in enumerate(chunks, first):
        db.execute(
            "INSERT INTO chunks (key, file, repeats, text) VALUES (?, ?, ?, ?)",
            (key, file, chunk.overlap_chars, chunk.text),
        )
        db.execute(
            f"INSERT INTO {index} (rowid, scope, text) VALUES (?, ?, ?)",
            (key, scope, add_spaces(chunk.text)),
        )
        size += len(chunk.text.encode())
    if vectors is not None:
        content = b"".join(vectors.each)
        db.execute(
            "INSERT INTO vectors (file, first, count, model, content) VALUES (?, ?, ?, ?, ?)",
            (file, first, len(vectors.each), vectors.model, content),
        )
        size += len(content)
    db.execute("UPDATE files SET usage_bytes = usage_bytes + ? WHERE key = ?", (size, file))


def _erase_chunks(db: apsw.Connection, file: int, *, limit: int) -> int:
    """Erase up to `limit` of a file's chunks, -1 for all; return how many those were."""
    index, scope = _place(db, file)
    query = "SELECT key, text FROM chunks WHERE file = ? ORDER BY key LIMIT ?"
    found = rows_of(db, query, (file, limit))
    for key, text in found:
        db.execute(
            f"INSERT INTO {index} ({index}, rowid, scope, text) VALUES ('delete', ?, ?, ?)",
            (key, scope, add_spaces(text)),
        )
        db.execute("DELETE FROM chunks WHERE key = ?", (key,))
    db.execute("DELETE FROM vectors WHERE file = ?", (file,))
    if not found:
        return 0
    db.execute(
        "UPDATE tenants SET to_merge = 2 FROM stores s, files f"
        " WHERE tenants.key = s.tenant AND s.key = f.store AND f.key = ?",
        (file,),
    )
    return len(found)


def _sweep(db: apsw.Connection, limit: int) -> int:
    swept = 0
    for (file,) in rows_of(db, "SELECT key FROM files WHERE is_removed LIMIT ?", (limit,)):
        erased = _erase_chunks(db, file, limit=limit - swept)
        swept += erased
        if swept >= limit:  # there may be more of it
            return swept
        db.execute("DELETE FROM files WHERE key = ?", (file,))
        swept += 1
    if swept == 0:
        swept = _merge(db)
    query = (
        "SELECT key FROM stores s WHERE is_removed"
        " AND NOT EXISTS (SELECT 1 FROM files WHERE store = s.key) LIMIT ?"
    )
    for (store,) in rows_of(db, query, (limit,)):
        db.execute("DELETE FROM batches WHERE store = ?", (store,))
        db.execute("DELETE FROM stores WHERE key = ?", (store,))
        swept += 1
    return swept


def _merge(db: apsw.Connection) -> int:
    """Merge some of an index from which much was erased; return 0 when none is left to merge."""
    query = "SELECT key, to_merge FROM tenants WHERE to_merge LIMIT 1"
    for tenant, to_merge in rows_of(db, query, ()):
        index = _index(tenant)
        pages = -MERGED_PAGES if to_merge == 2 else MERGED_PAGES  # the first call is a negative one
        before = db.total_changes()
        db.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (pages,))
        goes_on = db.total_changes() - before >= 2  # as the manual of FTS5 has it
        db.execute("UPDATE tenants SET to_merge = ? WHERE key = ?", (goes_on, tenant))
        return 1
    return 0


# --- searching ------------------------------------------------------------------------------------


def _search(
    db: apsw.Connection,
    tenant: str,
    store_ids: Sequence[str],
    words: str,
    vectors: Vectors | None,
    fits: Filter | None,
    most: int,
) -> list[Passage]:
    stores = rows_of(
        db,
        "SELECT s.key, s.tenant FROM stores s JOIN tenants t ON t.key = s.tenant WHERE t.name = ?"
        " AND s.id IN (SELECT value FROM json_each(?)) AND NOT s.is_removed",
        (tenant, json.dumps(store_ids)),
    )
    files = _fitting(db, [key for key, _ in stores], fits)
    if not files:
        return []
    asked = _Asked(db, _index(stores[0][1]), [_scope(key) for key, _ in stores], words)
    likest = _Likeness(db, files, vectors)
    keys = {*asked.best(files, most), *likest.best(most)}
    text_score, embedding_score = asked.scores(keys), likest.scores(keys)
    return [
        replace(
            each,
            text_score=text_score.get(each.id, 0.0),
            embedding_score=embedding_score.get(each.id, 0.0),
        )
        for each in _passages(db, keys)
    ]


def _fitting(db: apsw.Connection, stores: Sequence[int], fits: Filter | None) -> list[int]:
    """Return the files that are to be searched."""
    found = rows_of(
        db,
        "SELECT key, attributes FROM files WHERE store IN (SELECT value FROM json_each(?))"
        " AND status = 'completed' AND NOT is_removed",
        (json.dumps(stores),),
    )
    return [
        key
        for key, attributes in found
        if fits is None or fits.matches(_decode_attributes(attributes))
    ]


def _passages(db: apsw.Connection, keys: Collection[int]) -> list[Passage]:
    found = rows_of(
        db,
        "SELECT c.key, f.id, f.filename, f.attributes, c.text"
        " FROM chunks c JOIN files f ON f.key = c.file"
        " WHERE c.key IN (SELECT value FROM json_each(?))",
        (json.dumps(list(keys)),),
    )
    return [
        Passage(
            id=key,
            file_id=file_id,
            filename=filename,
            attributes=_decode_attributes(attributes),
            text=text,
        )
        for key, file_id, filename, attributes, text in found
    ]


class _Asked:
    """The words of a query, in the chunks of some stores.

    FTS5 finds the best chunks, in C. Its BM25 gives a word that is in more than half of them no
    weight at all, which in a store of few chunks is every word; and its scores have no upper bound.
    So the best are scored once more, by the form of BM25 that Lucene has, as a share of what no
    text could exceed.
    """

    def __init__(self, db: apsw.Connection, index: str, scopes: Sequence[str], words: str) -> None:
        self._db = db
        self._index = index
        found = dict.fromkeys(word.casefold() for word in _WORD.findall(add_spaces(words)))
        # What the index does not hold as a word would be no part of the query, and `share` would
        # count wrong.
        tokens = db.fts5_tokenizer(TOKENIZER[0], [*TOKENIZER[1:]])
        is_word = (word for word in found if tokens(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None))
        self._words = [f'"{word}"' for word in islice(is_word, MOST_WORDS)]
        in_scope = " OR ".join(f'"{scope}"' for scope in scopes)
        self._match = f"scope : ({in_scope}) AND text : ({' OR '.join(self._words)})"

    def best(self, files: Sequence[int], most: int) -> list[int]:
        if not self._words:
            return []
        found = rows_of(
            self._db,
            f"SELECT w.rowid FROM {self._index} w CROSS JOIN chunks c ON c.key = w.rowid"
            f" WHERE {self._index} MATCH ?"
            " AND c.file IN (SELECT value FROM json_each(?))"
            f" ORDER BY bm25({self._index}, 0.0, 1.0) LIMIT ?",
            (self._match, json.dumps(files), most),
        )
        return [key for (key,) in found]

    def scores(self, keys: Collection[int]) -> Mapping[int, float]:
        if not self._words or not keys:
            return {}
        weights = self._weights()
        given = ", ".join("?" * len(weights))
        found = rows_of(
            self._db,
            f"SELECT rowid, share({self._index}, {given}) FROM {self._index}"
            f" WHERE {self._index} MATCH ? AND rowid IN (SELECT value FROM json_each(?))",
            (*weights, f"text : ({' OR '.join(self._words)})", json.dumps(list(keys))),
        )
        return dict(found)

    def _weights(self) -> list[float]:
        """Return how much each word counts: the more, the fewer chunks of the tenant have it."""
        [(chunks,)] = rows_of(self._db, f"SELECT count(*) FROM {self._index}_docsize", ())
        weights = []
        for word in self._words:
            query = f"SELECT count(*) FROM {self._index} WHERE {self._index} MATCH ?"
            [(having,)] = rows_of(self._db, query, (f"text : {word}",))
            weights.append(math.log(1 + (chunks - having + 0.5) / (having + 0.5)))
        return weights


def _add_share(db: apsw.Connection) -> None:
    """Let queries score what they find by the weights of their words."""
    db.register_fts5_function("share", _share)


def _share(chunk: apsw.FTS5ExtensionApi, /, *weights: Any) -> float:
    """Return the score of a chunk for the words that are asked for, from 0 to 1."""
    average = max(chunk.column_total_size(1) / max(chunk.row_count, 1), 1)
    length = K1 * (1 - B + B * chunk.column_size(1) / average)
    score = 0.0
    for position, weight in enumerate(weights):
        if chunk.phrase_columns(position):
            count = len(chunk.phrase_column_offsets(position, 1))
            score += weight * count / (count + length)
    return float(score / sum(weights))


class _Likeness:
    """How like the query's vector those of all chunks of some files are, where they have any."""

    def __init__(self, db: apsw.Connection, files: Sequence[int], vectors: Vectors | None) -> None:
        self._scores: dict[int, float] = {}
        if vectors is None:
            return
        import numpy as np  # the extra `embeddings`

        asked = np.frombuffer(vectors.each[0], dtype=np.float32)
        rows = db.execute(
            "SELECT first, count, content FROM vectors WHERE model = ?"
            " AND file IN (SELECT value FROM json_each(?)) AND length(content) = count * ?",
            (vectors.model, json.dumps(files), len(asked) * FLOAT_BYTES),
        )
        for first, count, content in rows:
            found = np.frombuffer(content, dtype=np.float32).reshape(count, len(asked)) @ asked
            self._scores.update(zip(range(first, first + count), found.tolist(), strict=True))

    def best(self, most: int) -> list[int]:
        return sorted(self._scores, key=self._scores.__getitem__, reverse=True)[:most]

    def scores(self, keys: Collection[int]) -> Mapping[int, float]:
        return {key: min(max(self._scores.get(key, 0.0), 0.0), 1.0) for key in keys}
