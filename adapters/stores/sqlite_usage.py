"""What API keys use, in the SQLite store: statements, and functions for its writing thread.

Each function runs in a transaction that no other process writes beside, so it may read first.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from antiphon.adapters.stores.sqlite_file import rows_of
from antiphon.application.ports import Charge, KeyUsage, RunSlot

REMOVE_ALL_EXPIRED = "DELETE FROM key_counters WHERE expires_at <= ?"

REMOVE_EXPIRED = "DELETE FROM key_counters WHERE key_id = ? AND expires_at <= ?"

# The slot of a stored response is taken while that is unfinished, any other while its owner lives.
REMOVE_FREE_SLOTS = """
DELETE FROM key_slots WHERE key_id = ?1 AND NOT CASE
    WHEN EXISTS (
        SELECT 1 FROM responses
        WHERE tenant = key_slots.tenant AND id = key_slots.response_id AND body IS NOT NULL
    ) THEN EXISTS (
        SELECT 1 FROM responses
        WHERE tenant = key_slots.tenant AND id = key_slots.response_id
            AND status IN ('queued', 'in_progress')
    ) ELSE EXISTS (
        SELECT 1 FROM servers
        WHERE owner = key_slots.owner AND beat_at + ttl_s > ?2 AND beat_at <= ?2 + 1
    ) END
"""

GET_COUNT = "SELECT amount FROM key_counters WHERE key_id = ? AND name = ? AND start = ?"

ADD = """
INSERT INTO key_counters (key_id, name, start, amount, expires_at)
VALUES (?1, ?2, ?3, max(?4, 0), ?5)
ON CONFLICT (key_id, name, start) DO UPDATE SET amount = max(amount + ?4, 0)
"""

COUNT_SLOTS = "SELECT count(*) FROM key_slots WHERE key_id = ?"

HAS_SLOT = "SELECT 1 FROM key_slots WHERE key_id = ? AND tenant = ? AND response_id = ?"

TAKE_SLOT = """
INSERT INTO key_slots (key_id, tenant, response_id, owner) VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING
"""

FREE_SLOT = """
DELETE FROM key_slots WHERE key_id = ? AND tenant = ? AND response_id = ? RETURNING owner
"""


def reserve(
    key_id: str,
    charges: Sequence[Charge],
    slot: RunSlot | None,
    now: float,
    uptime: float,
    db: apsw.Connection,
) -> KeyUsage:
    db.execute(REMOVE_EXPIRED, (key_id, now))
    db.execute(REMOVE_FREE_SLOTS, (key_id, uptime))
    has_room = all(charge.fits(_count(key_id, charge, db)) for charge in charges)
    accepted = has_room and (slot is None or _has_slot_for(key_id, slot, db))
    if accepted:
        _add(key_id, charges, db)
        if slot is not None:
            db.execute(TAKE_SLOT, (key_id, slot.tenant, slot.response_id, slot.owner))
    return KeyUsage(
        accepted=accepted,
        counts=[_count(key_id, charge, db) for charge in charges],
        runs=_count_slots(key_id, db),
    )


def settle(
    key_id: str, tenant: str, response_id: str, charges: Sequence[Charge], db: apsw.Connection
) -> bool:
    if not rows_of(db, FREE_SLOT, (key_id, tenant, response_id)):
        return False
    _add(key_id, charges, db)
    return True


def _has_slot_for(key_id: str, slot: RunSlot, db: apsw.Connection) -> bool:
    if rows_of(db, HAS_SLOT, (key_id, slot.tenant, slot.response_id)):
        return True
    return slot.fits(_count_slots(key_id, db))


def _count(key_id: str, charge: Charge, db: apsw.Connection) -> int:
    rows = rows_of(db, GET_COUNT, (key_id, charge.name, charge.start))
    return int(rows[0][0]) if rows else 0


def _count_slots(key_id: str, db: apsw.Connection) -> int:
    return int(rows_of(db, COUNT_SLOTS, (key_id,))[0][0])


def _add(key_id: str, charges: Sequence[Charge], db: apsw.Connection) -> None:
    for charge in charges:
        if charge.amount:
            db.execute(ADD, (key_id, charge.name, charge.start, charge.amount, charge.expires_at))
