"""The jobs that index the files of vector stores: which are due, those of each tenant in turn."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import apsw

from antiphon.adapters.stores.sqlite.file import Row, rows_of
from antiphon.adapters.stores.vectors import rows
from antiphon.application.ports import IndexJob

R = TypeVar("R")

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
    tenants = tenants_in_turn(rows_of(db, _TENANTS, (now,)), skip, last)[:limit]
    return jobs_in_turn([rows_of(db, _OF_TENANT, (key, now, limit)) for key in tenants], limit)


def tenants_in_turn(
    tenants: Iterable[Sequence[Any]], skip: Collection[str], last: Sequence[str]
) -> list[int]:
    """Return the keys of tenants in the order of their turns; rows are key, name and due time."""
    turns = {name: turn for turn, name in enumerate(last, 1)}
    wanted = [row for row in tenants if row[1] not in skip]
    wanted.sort(key=lambda row: (turns.get(row[1], 0), row[2]))
    return [row[0] for row in wanted]


def jobs_in_turn(by_tenant: Sequence[Sequence[R]], limit: int) -> list[R]:
    """Return the first jobs, one of each tenant in turn."""
    in_turn = [row for turn in zip_longest(*by_tenant) for row in turn if row is not None]
    return in_turn[:limit]
