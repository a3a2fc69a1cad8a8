"""The full-text index of vector stores: one FTS5 table per tenant, and the chunks it refers to."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from antiphon.adapters.stores.sqlite.file import rows_of
from antiphon.application.ports import Vectors
from antiphon.domain.retrieval.text_chunks import TextChunk, add_spaces

TOKENIZER = ("porter", "unicode61", "remove_diacritics", "2")

MERGE_PAGES = 500
"""How many pages of an index one transaction merges."""


def make_index(db: apsw.Connection, store: int) -> None:
    [(tenant,)] = rows_of(db, "SELECT tenant FROM stores WHERE key = ?", (store,))
    name = index_of(tenant)
    if rows_of(db, "SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)):
        return
    db.execute(
        f"CREATE VIRTUAL TABLE {name} USING fts5(scope, text, content='',"
        f" tokenize='{' '.join(TOKENIZER)}')"
    )


def index_of(tenant: int) -> str:
    return f"words_{tenant}"


def scope_of(store: int) -> str:
    """Return the word that marks every chunk of a store in the index."""
    return f"s{store}"


def _index_and_scope(db: apsw.Connection, file: int) -> tuple[str, str]:
    """Return the index and the scope of a file."""
    query = "SELECT s.tenant, s.key FROM files f JOIN stores s ON s.key = f.store WHERE f.key = ?"
    [(tenant, store)] = rows_of(db, query, (file,))
    return index_of(tenant), scope_of(store)


def add_chunks(
    db: apsw.Connection, file: int, chunks: Sequence[TextChunk], vectors: Vectors | None
) -> None:
    index, scope = _index_and_scope(db, file)
    [(first,)] = rows_of(db, "SELECT coalesce(max(key), 0) + 1 FROM chunks", ())
    # Each statement takes the interpreter's lock again, which a busy server takes long to give.
    rows = [(chunk.overlap_chars, chunk.text, add_spaces(chunk.text)) for chunk in chunks]
    values = (first, file, scope, msgspec.json.encode(rows).decode())
    db.execute(
        "INSERT INTO chunks (key, file, overlap_chars, text)"
        " SELECT ?1 + key, ?2, value ->> 0, value ->> 1 FROM json_each(?4)",
        values,
    )
    db.execute(
        f"INSERT INTO {index} (rowid, scope, text)"
        " SELECT ?1 + key, ?3, value ->> 2 FROM json_each(?4)",
        values,
    )
    size = sum(len(chunk.text.encode()) for chunk in chunks)
    if vectors is not None:
        content = b"".join(vectors.each)
        db.execute(
            "INSERT INTO vectors (file, first, count, model, content) VALUES (?, ?, ?, ?, ?)",
            (file, first, len(vectors.each), vectors.model, content),
        )
        size += len(content)
    db.execute("UPDATE files SET usage_bytes = usage_bytes + ? WHERE key = ?", (size, file))


def erase_chunks(db: apsw.Connection, file: int, *, limit: int) -> int:
    """Erase up to `limit` chunks of a file, or all if it is -1. Return their number."""
    index, scope = _index_and_scope(db, file)
    query = "SELECT key, text FROM chunks WHERE file = ? ORDER BY key LIMIT ?"
    chunks = rows_of(db, query, (file, limit))
    for key, text in chunks:
        db.execute(
            f"INSERT INTO {index} ({index}, rowid, scope, text) VALUES ('delete', ?, ?, ?)",
            (key, scope, add_spaces(text)),
        )
        db.execute("DELETE FROM chunks WHERE key = ?", (key,))
    db.execute("DELETE FROM vectors WHERE file = ?", (file,))
    if not chunks:
        return 0
    db.execute(
        "UPDATE tenants SET to_merge = 2 FROM stores s, files f"
        " WHERE tenants.key = s.tenant AND s.key = f.store AND f.key = ?",
        (file,),
    )
    return len(chunks)


def sweep_removed(db: apsw.Connection, limit: int) -> int:
    """Erase removed files and stores, up to about `limit` chunks. Return how much was erased."""
    swept = 0
    for (file,) in rows_of(db, "SELECT key FROM files WHERE is_removed LIMIT ?", (limit,)):
        swept += erase_chunks(db, file, limit=limit - swept)
        if swept >= limit:  # the file may have more chunks
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
    """Merge a part of an index from which chunks were erased. Return 0 if there is none."""
    query = "SELECT key, to_merge FROM tenants WHERE to_merge LIMIT 1"
    for tenant, to_merge in rows_of(db, query, ()):
        index = index_of(tenant)
        pages = (
            -MERGE_PAGES if to_merge == 2 else MERGE_PAGES
        )  # the first call needs a negative number
        before = db.total_changes()
        db.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (pages,))
        is_unfinished = db.total_changes() - before >= 2  # as documented by FTS5
        db.execute("UPDATE tenants SET to_merge = ? WHERE key = ?", (is_unfinished, tenant))
        return 1
    return 0
