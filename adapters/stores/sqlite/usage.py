"""Usage of API keys in the SQLite store: statements, and functions for its writing thread.

Each function runs in a transaction that no other process writes beside, so it may read first.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from antiphon.adapters.stores.sqlite.file import rows_of
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

GET_COUNTS = "SELECT name, start, amount FROM key_counters WHERE key_id = ? AND expires_at > ?"

ADD = """
INSERT INTO key_counters (key_id, name, start, amount, expires_at)
VALUES (?1, ?2, ?3, max(?4, 0), ?5)
ON CONFLICT (key_id, name, start) DO UPDATE SET amount = max(amount + ?4, 0)
"""

COUNT_SLOTS = "SELECT count(*) FROM key_slots WHERE key_id = ?"

HAS_SLOT = "SELECT 1 FROM key_slots WHERE key_id = ? AND tenant = ? AND response_id = ?"

TAKE_SLOT = """
INSERT INTO key_slots (key_id, tenant, response_id, owner) VALUES (?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1
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
    rows = rows_of(db, GET_COUNTS, (key_id, now))
    found = {(name, start): int(amount) for name, start, amount in rows}
    counts = [found.get((charge.name, charge.start), 0) for charge in charges]
    has_room = all(map(Charge.fits, charges, counts))
    runs = _count_slots(key_id, db)
    # Slots that nobody has settled matter only where the limit is reached, and to who asks.
    if not (slot.fits(runs) if slot else any(charge.amount for charge in charges)):
        db.execute(REMOVE_FREE_SLOTS, (key_id, uptime))
        runs = _count_slots(key_id, db)
    is_accepted = has_room and (slot is None or _has_slot_for(key_id, slot, runs, db))
    if is_accepted:
        if any(each.amount and (each.name, each.start) not in found for each in charges):
            db.execute(REMOVE_EXPIRED, (key_id, now))  # a window begins, so others have ended
        _add(key_id, charges, db)
        counts = [max(n + charge.amount, 0) for n, charge in zip(counts, charges, strict=True)]
        if slot is not None:
            values = (key_id, slot.tenant, slot.response_id, slot.owner)
            runs += len(rows_of(db, TAKE_SLOT, values))
    return KeyUsage(accepted=is_accepted, counts=counts, runs=runs)


def settle(
    key_id: str, tenant: str, response_id: str, charges: Sequence[Charge], db: apsw.Connection
) -> bool:
    if not rows_of(db, FREE_SLOT, (key_id, tenant, response_id)):
        return False
    _add(key_id, charges, db)
    return True


def _has_slot_for(key_id: str, slot: RunSlot, runs: int, db: apsw.Connection) -> bool:
    if slot.fits(runs):
        return True
    return bool(rows_of(db, HAS_SLOT, (key_id, slot.tenant, slot.response_id)))


def _count_slots(key_id: str, db: apsw.Connection) -> int:
    return int(rows_of(db, COUNT_SLOTS, (key_id,))[0][0])


def _add(key_id: str, charges: Sequence[Charge], db: apsw.Connection) -> None:
    db.executemany(
        ADD,
        [
            (key_id, charge.name, charge.start, charge.amount, charge.expires_at)
            for charge in charges
            if charge.amount
        ],
    )
