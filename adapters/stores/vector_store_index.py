"""The full-text index of vector stores: an FTS5 table for each tenant, written and swept here."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from antiphon.adapters.stores.sqlite_file import rows_of
from antiphon.application.ports import Vectors
from antiphon.domain.text_chunks import TextChunk, add_spaces

TOKENIZER = ("porter", "unicode61", "remove_diacritics", "2")

MERGED_PAGES = 500
"""How much of an index is merged in one transaction."""


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
    """Return the word that every chunk of a store has in the index."""
    return f"s{store}"


def _place(db: apsw.Connection, file: int) -> tuple[str, str]:
    """Return the index and the scope of a file."""
    query = "SELECT s.tenant, s.key FROM files f JOIN stores s ON s.key = f.store WHERE f.key = ?"
    [(tenant, store)] = rows_of(db, query, (file,))
    return index_of(tenant), scope_of(store)


def add_chunks(
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


def erase_chunks(db: apsw.Connection, file: int, *, limit: int) -> int:
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


def sweep_removed(db: apsw.Connection, limit: int) -> int:
    swept = 0
    for (file,) in rows_of(db, "SELECT key FROM files WHERE is_removed LIMIT ?", (limit,)):
        erased = erase_chunks(db, file, limit=limit - swept)
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
        index = index_of(tenant)
        pages = -MERGED_PAGES if to_merge == 2 else MERGED_PAGES  # the first call is a negative one
        before = db.total_changes()
        db.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (pages,))
        goes_on = db.total_changes() - before >= 2  # as the manual of FTS5 has it
        db.execute("UPDATE tenants SET to_merge = ? WHERE key = ?", (goes_on, tenant))
        return 1
    return 0
