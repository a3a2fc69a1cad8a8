"""The jobs that index the files of vector stores: which are due, those of each tenant in turn."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

import apsw

from antiphon.adapters.stores import vector_store_rows as rows
from antiphon.adapters.stores.sqlite_file import Row, rows_of
from antiphon.application.ports import IndexJob

_UNFINISHED = "status = 'in_progress' AND NOT is_removed"

_TENANTS = f"""WITH RECURSIVE unfinished (tenant) AS (
        SELECT min(tenant) FROM files WHERE {_UNFINISHED}
        UNION ALL
        SELECT (SELECT min(tenant) FROM files WHERE {_UNFINISHED} AND tenant > unfinished.tenant)
        FROM unfinished WHERE tenant IS NOT NULL
    )
    SELECT t.key, t.name, f.due_at FROM unfinished u JOIN tenants t ON t.key = u.tenant
    JOIN files f ON f.key = (
        SELECT key FROM files WHERE tenant = t.key AND due_at <= ? AND {_UNFINISHED}
        ORDER BY due_at, key LIMIT 1
    )"""
"""The tenants with due jobs, and since when: two look-ups in the index for each tenant."""

_OF_TENANT = """SELECT f.key, f.attempts + 1, t.name, f.id, f.filename, f.chunk_size, f.overlap
    FROM files f JOIN tenants t ON t.key = f.tenant
    WHERE f.tenant = ? AND f.due_at <= ? AND f.status = 'in_progress' AND NOT f.is_removed
    ORDER BY f.due_at, f.key LIMIT ?"""


def has_due(db: apsw.Connection, now: float) -> bool:
    return bool(rows_of(db, f"{_TENANTS} LIMIT 1", (now,)))


def claim_due(
    db: apsw.Connection,
    *,
    now: float,
    limit: int,
    claim_s: float,
    skip: Collection[str],
    last: Sequence[str],
) -> list[IndexJob]:
    """Claim and return due jobs (`VectorStores.claim_due`)."""
    due = _in_turn(db, now, limit, skip, last)
    for key, attempt, *_ in due:
        db.execute(
            "UPDATE files SET due_at = ?, attempts = ? WHERE key = ?", (now + claim_s, attempt, key)
        )
    return [rows.job_of(row) for row in due]


def _in_turn(
    db: apsw.Connection, now: float, limit: int, skip: Collection[str], last: Sequence[str]
) -> list[Row]:
    turns = {name: turn for turn, name in enumerate(last, 1)}
    tenants = [row for row in rows_of(db, _TENANTS, (now,)) if row[1] not in skip]
    tenants.sort(key=lambda row: (turns.get(row[1], 0), row[2]))
    by_tenant = (rows_of(db, _OF_TENANT, (key, now, limit)) for key, *_ in tenants[:limit])
    in_turn = [row for turn in zip_longest(*by_tenant) for row in turn if row is not None]
    return in_turn[:limit]
