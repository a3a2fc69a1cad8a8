"""Responses and conversations in the SQLite store: statements, and functions for its threads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import apsw
from msgspec import Struct

from antiphon.adapters.stores.not_found import conversation_not_found, item_not_found
from antiphon.adapters.stores.sqlite import runs
from antiphon.adapters.stores.sqlite.file import Row, rows_of
from antiphon.application.ports import (
    Clock,
    EventChunk,
    Lease,
    StoredItem,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.domain.errors import ConversationLocked, IdempotencyKeyInUse, RequestError
from antiphon.domain.responses.response import Response

HAS_RESERVATION = "SELECT 1 FROM idempotency_keys WHERE tenant = ? AND key = ? AND response_id = ?"

# An unknown or deleted parent, or one of another tenant, is ignored.
CREATE = """
INSERT INTO responses (tenant, id, parent, status, created_at, body, conversation, context_end,
                       owner, epoch, logged, expires_at)
VALUES (?1, ?2, (SELECT id FROM responses WHERE tenant = ?1 AND id = ?3 AND body IS NOT NULL),
        ?4, ?5, ?6, ?7, (SELECT next_place FROM conversations WHERE tenant = ?1 AND id = ?7),
        ?8, ?9, ?10, ?11)
RETURNING number
"""

ADD_ITEMS = """
INSERT INTO items (tenant, response_id, kind, position, item_id, body) VALUES (?, ?, ?, ?, ?, ?)
"""
MAX_ROWS_AT_ONCE = 200
"""Each statement in a savepoint costs time in proportion to what the savepoint has changed. With
one for each item, storing 10,000 items took up to a minute."""

FINISH = """
UPDATE responses SET status = ?4, body = ?5, finished_at = ?6
WHERE tenant = ?1 AND id = ?2 AND epoch = ?3 AND owner IS NOT NULL
    AND status IN ('queued', 'in_progress')
RETURNING number
"""

REMOVE_OUTPUT = "DELETE FROM items WHERE tenant = ? AND response_id = ? AND kind = 1"

# One statement, so that body and output are consistent.
GET = """
SELECT -1 AS position, body FROM responses WHERE tenant = ?1 AND id = ?2 AND body IS NOT NULL
UNION ALL
SELECT position, body FROM items WHERE tenant = ?1 AND response_id = ?2 AND kind = 1
ORDER BY position
"""

ITEM = """
SELECT body FROM items WHERE tenant = ? AND item_id = ? ORDER BY number DESC LIMIT 1
"""

DELETE = """
UPDATE responses SET status = 'deleted', body = NULL, logged = 0, expires_at = NULL
WHERE tenant = ? AND id = ? AND body IS NOT NULL
RETURNING number
"""

REMOVE_RESERVATIONS = """
DELETE FROM idempotency_keys INDEXED BY idempotency_keys_by_response
WHERE tenant = ? AND response_id = ?
"""

PURGE = """
DELETE FROM responses
WHERE tenant = ?1 AND id = ?2 AND body IS NULL
    AND NOT EXISTS (SELECT 1 FROM responses WHERE tenant = ?1 AND parent = ?2)
RETURNING parent
"""

# Items of a conversation stay in it. The plus keeps SQLite from searching all conversation items of
# the tenant.
MOVE_ITEMS_TO_CONVERSATION = """
UPDATE items SET response_id = conversation_id, kind = 2, position = place
WHERE tenant = ? AND response_id = ? AND +conversation_id IS NOT NULL
"""

REMOVE_ITEMS = "DELETE FROM items WHERE tenant = ? AND response_id = ?"

CREATE_CONVERSATION = """
INSERT INTO conversations (tenant, id, created_at, metadata, next_place) VALUES (?, ?, ?, ?, ?)
"""

GET_CONVERSATION = "SELECT created_at, metadata FROM conversations WHERE tenant = ? AND id = ?"

UPDATE_CONVERSATION = """
UPDATE conversations SET metadata = ?3 WHERE tenant = ?1 AND id = ?2 RETURNING created_at
"""

DELETE_CONVERSATION = "DELETE FROM conversations WHERE tenant = ? AND id = ? RETURNING id"

HAS_ITEM = "SELECT 1 FROM items WHERE tenant = ?1 AND conversation_id = ?2 AND item_id = ?3 LIMIT 1"

# These two remove all items, or those with one id if ?3 is not NULL: this one the items that belong
# to the conversation alone, the next one those that a response has too.
REMOVE_OWN_ITEMS = """
DELETE FROM items
WHERE tenant = ?1 AND conversation_id = ?2 AND kind = 2 AND (?3 IS NULL OR item_id = ?3)
"""

UNLINK_SHARED_ITEMS = """
UPDATE items SET conversation_id = NULL, place = NULL
WHERE tenant = ?1 AND conversation_id = ?2 AND (?3 IS NULL OR item_id = ?3)
"""

ADD_OWN_ITEM = """
INSERT INTO items (tenant, response_id, kind, position, item_id, body, conversation_id, place)
VALUES (?1, ?2, 2, ?3, ?4, ?5, ?2, ?3)
"""

LINK_SHARED_ITEM = "UPDATE items SET conversation_id = ?, place = ? WHERE number = ?"

ITEMS_OF_RESPONSE = (
    "SELECT number FROM items WHERE tenant = ? AND response_id = ? ORDER BY kind, position"
)

RESERVE_PLACES = """
UPDATE conversations SET next_place = next_place + ?3
WHERE tenant = ?1 AND id = ?2 AND claimed_by IS NULL
RETURNING next_place
"""

CLAIM = """
UPDATE conversations SET claimed_by = ?3, claim_owner = ?4
WHERE tenant = ?1 AND id = ?2 AND claimed_by IS NULL
RETURNING id
"""

# A claim is void if its owner is dead and its response is not running.
DROP_VOID_CLAIM = """
UPDATE conversations SET claimed_by = NULL
WHERE tenant = ?1 AND id = ?2 AND claimed_by IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM servers
        WHERE owner = claim_owner AND beat_at + ttl_s > ?3 AND beat_at <= ?3 + 1
    )
    AND NOT EXISTS (
        SELECT 1 FROM responses
        WHERE responses.tenant = ?1 AND responses.id = claimed_by
            AND status IN ('queued', 'in_progress')
    )
"""

RELEASE = """
UPDATE conversations SET claimed_by = NULL, next_place = next_place + ?4
WHERE tenant = ?1 AND id = ?2 AND claimed_by = ?3
RETURNING next_place
"""

RELEASE_CLAIMS = "UPDATE conversations SET claimed_by = NULL WHERE tenant = ? AND claimed_by = ?"

# The statements below span all tenants: the server runs them for itself, not for a client.

EXPIRED_RESPONSES = """
SELECT tenant, id FROM responses
WHERE expires_at <= ?1 AND conversation IS NULL AND status NOT IN ('queued', 'in_progress')
ORDER BY expires_at LIMIT ?2
"""

# These indexes are small. A running response, or one in a conversation, has rarely expired.
IS_ANYTHING_EXPIRED = """
SELECT 1 WHERE EXISTS (SELECT 1 FROM responses WHERE expires_at <= ?1)
    OR EXISTS (SELECT 1 FROM responses WHERE logged AND finished_at <= ?2)
    OR EXISTS (SELECT 1 FROM idempotency_keys WHERE expires_at <= ?1)
"""

EXPIRED_LOGS = """
SELECT number FROM responses WHERE logged AND finished_at <= ? ORDER BY finished_at LIMIT ?
"""

REMOVE_EXPIRED_RESERVATIONS = """
DELETE FROM idempotency_keys
WHERE (tenant, key) IN (
    SELECT tenant, key FROM idempotency_keys WHERE expires_at <= ?1 LIMIT ?2
)
RETURNING 1
"""


# --- functions for the writing thread -------------------------------------------------------------


def create(
    tenant: str, stored: StoredResponse, body: bytes, items: Sequence[Row], db: apsw.Connection
) -> None:
    response, run = stored.response, stored.run
    if run.key is not None and not rows_of(db, HAS_RESERVATION, (tenant, run.key, response.id)):
        raise IdempotencyKeyInUse
    row = (
        tenant,
        response.id,
        response.previous_response_id,
        response.status,
        response.created_at,
        body,
        conversation_of(response),
        run.owner,
        0 if run.owner is None else 1,
        run.events is not None,
        stored.expires_at,
    )
    [(number,)] = rows_of(db, CREATE, row)
    _add_items(items, db)
    if run.job is not None:
        db.execute(runs.ADD_JOB, (number, run.job))
    if run.events is not None:
        chunk = run.events
        db.execute(runs.START_LOG, (number, chunk.first, chunk.count, chunk.body))


def _add_items(items: Sequence[Row], db: apsw.Connection) -> None:
    for start in range(0, len(items), MAX_ROWS_AT_ONCE):
        rows = items[start : start + MAX_ROWS_AT_ONCE]
        more_rows = ", (?, ?, ?, ?, ?, ?)" * (len(rows) - 1)
        db.execute(ADD_ITEMS + more_rows, tuple(chain.from_iterable(rows)))


class FinishedRow(Struct, frozen=True):
    """Everything that `finish_response` writes, in its stored form."""

    lease: Lease
    response: Response
    body: bytes
    output: Sequence[Row]
    events: EventChunk | None
    deliveries: Sequence[WebhookDelivery]


def finish(row: FinishedRow, now: float, db: apsw.Connection) -> bool:
    lease, response = row.lease, row.response
    # Write the log first: it is closed once the run is over.
    if row.events is not None and not runs.append(lease, row.events, db):
        return False
    values = (*runs.lease_row(lease), response.status, row.body, now)
    finished = rows_of(db, FINISH, values)
    if not finished:
        return False
    db.execute(runs.REMOVE_JOB, finished[0])
    db.execute(REMOVE_OUTPUT, (lease.tenant, response.id))
    _add_items(row.output, db)
    runs.add_deliveries(row.deliveries, now, db)
    _release_with_items(lease.tenant, response, db)
    return True


def _release_with_items(tenant: str, response: Response, db: apsw.Connection) -> None:
    conversation_id = conversation_of(response)
    if conversation_id is None:
        return
    items = rows_of(db, ITEMS_OF_RESPONSE, (tenant, response.id)) if response.keeps_items else []
    for first in _release_places(tenant, conversation_id, response.id, len(items), db):
        links = [(conversation_id, place, number) for place, (number,) in enumerate(items, first)]
        db.executemany(LINK_SHARED_ITEM, links)


def delete(tenant: str, response_id: str, db: apsw.Connection) -> bool:
    deleted = rows_of(db, DELETE, (tenant, response_id))
    if not deleted:
        return False
    runs.remove_run(deleted[0][0], db)
    db.execute(REMOVE_RESERVATIONS, (tenant, response_id))
    db.execute(RELEASE_CLAIMS, (tenant, response_id))
    # Delete the items of this response and of its deleted ancestors that no response continues.
    purgeable: Any = response_id
    while purged := rows_of(db, PURGE, (tenant, purgeable)):
        db.execute(MOVE_ITEMS_TO_CONVERSATION, (tenant, purgeable))
        db.execute(REMOVE_ITEMS, (tenant, purgeable))
        purgeable = purged[0][0]
    return True


def sweep(now: float, logs_before: float, limit: int, db: apsw.Connection) -> int:
    responses = rows_of(db, EXPIRED_RESPONSES, (now, limit))
    for tenant, response_id in responses:
        delete(tenant, response_id, db)
    logs = rows_of(db, EXPIRED_LOGS, (logs_before, limit - len(responses)))
    for log in logs:
        db.execute(runs.REMOVE_LOG, log)
        db.execute(runs.MARK_LOG_REMOVED, log)
    remaining = limit - len(responses) - len(logs)
    reservations = rows_of(db, REMOVE_EXPIRED_RESERVATIONS, (now, remaining))
    return len(responses) + len(logs) + len(reservations)


def create_conversation(row: Row, items: Sequence[Row], db: apsw.Connection) -> None:
    db.execute(CREATE_CONVERSATION, row)
    db.executemany(ADD_OWN_ITEM, items)


def delete_conversation(tenant: str, conversation_id: str, db: apsw.Connection) -> None:
    if not db.execute(DELETE_CONVERSATION, (tenant, conversation_id)).fetchall():
        raise conversation_not_found(conversation_id)
    db.execute(REMOVE_OWN_ITEMS, (tenant, conversation_id, None))
    db.execute(UNLINK_SHARED_ITEMS, (tenant, conversation_id, None))


def delete_conversation_item(
    tenant: str, conversation_id: str, item_id: str, db: apsw.Connection
) -> None:
    values = (tenant, conversation_id, item_id)
    if not db.execute(HAS_ITEM, values).fetchall():
        raise item_not_found(item_id, conversation_id)
    db.execute(REMOVE_OWN_ITEMS, values)
    db.execute(UNLINK_SHARED_ITEMS, values)


def create_conversation_items(
    tenant: str,
    conversation_id: str,
    items: Sequence[StoredItem],
    uptime: Clock,
    db: apsw.Connection,
) -> None:
    db.execute(DROP_VOID_CLAIM, (tenant, conversation_id, uptime()))
    rows = rows_of(db, RESERVE_PLACES, (tenant, conversation_id, len(items)))
    if not rows:
        raise _unavailable_error(tenant, conversation_id, db)
    first = rows[0][0] - len(items)
    db.executemany(ADD_OWN_ITEM, own_item_rows(tenant, conversation_id, first, items))


def claim(
    tenant: str,
    conversation_id: str,
    response_id: str,
    owner: str,
    uptime: Clock,
    db: apsw.Connection,
) -> None:
    db.execute(DROP_VOID_CLAIM, (tenant, conversation_id, uptime()))
    if not rows_of(db, CLAIM, (tenant, conversation_id, response_id, owner)):
        raise _unavailable_error(tenant, conversation_id, db)


def release(
    tenant: str,
    conversation_id: str,
    response_id: str,
    items: Sequence[StoredItem],
    db: apsw.Connection,
) -> None:
    for first in _release_places(tenant, conversation_id, response_id, len(items), db):
        db.executemany(ADD_OWN_ITEM, own_item_rows(tenant, conversation_id, first, items))


def _release_places(
    tenant: str, conversation_id: str, response_id: str, count: int, db: apsw.Connection
) -> list[int]:
    """Free the conversation and return the first of `count` new places; [] if not claimed."""
    rows = rows_of(db, RELEASE, (tenant, conversation_id, response_id, count))
    return [end - count for (end,) in rows]


def _unavailable_error(tenant: str, conversation_id: str, db: apsw.Connection) -> RequestError:
    exists = db.execute(GET_CONVERSATION, (tenant, conversation_id)).fetchall()
    return ConversationLocked() if exists else conversation_not_found(conversation_id)


# --- rows -----------------------------------------------------------------------------------------


def item_rows(tenant: str, response_id: str, kind: int, items: Sequence[StoredItem]) -> list[Row]:
    return [
        (tenant, response_id, kind, position, item.id or None, memoryview(item.raw))
        for position, item in enumerate(items)
    ]


def own_item_rows(
    tenant: str, conversation_id: str, first: int, items: Sequence[StoredItem]
) -> list[Row]:
    return [
        (tenant, conversation_id, place, item.id or None, memoryview(item.raw))
        for place, item in enumerate(items, first)
    ]


def conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None
