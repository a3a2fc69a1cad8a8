"""Responses and conversations in the SQLite store: statements, and work for its threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import Raw, Struct

from antiphon.adapters.stores import sqlite_runs as runs
from antiphon.adapters.stores.sqlite_file import Row, rows_of
from antiphon.application.ports import (
    Clock,
    EventChunk,
    Lease,
    StoredItem,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.domain.errors import ConversationLocked, IdempotencyKeyInUse, NotFound, RequestError
from antiphon.domain.response import Response

INPUT, OUTPUT = 0, 1  # and 2: items that are the conversation's alone

HAS_KEY = "SELECT 1 FROM repeats WHERE tenant = ? AND key = ? AND response_id = ?"

# A parent that is unknown, deleted or another tenant's is no parent.
CREATE = """
INSERT INTO responses (tenant, id, parent, status, created_at, body, conversation, given,
                       owner, epoch, logged, expires_at)
VALUES (?1, ?2, (SELECT id FROM responses WHERE tenant = ?1 AND id = ?3 AND body IS NOT NULL),
        ?4, ?5, ?6, ?7, (SELECT next_place FROM conversations WHERE tenant = ?1 AND id = ?7),
        ?8, ?9, ?10, ?11)
RETURNING number
"""

ADD_ITEM = """
INSERT INTO items (tenant, response_id, kind, position, item_id, body) VALUES (?, ?, ?, ?, ?, ?)
"""

FINISH = """
UPDATE responses SET status = ?4, body = ?5, finished_at = ?6
WHERE tenant = ?1 AND id = ?2 AND epoch = ?3 AND owner IS NOT NULL
    AND status IN ('queued', 'in_progress')
RETURNING number
"""

REMOVE_OUTPUT = "DELETE FROM items WHERE tenant = ? AND response_id = ? AND kind = 1"

# One statement, so that body and output are of the same moment.
GET = """
SELECT -1 AS position, body FROM responses WHERE tenant = ?1 AND id = ?2 AND body IS NOT NULL
UNION ALL
SELECT position, body FROM items WHERE tenant = ?1 AND response_id = ?2 AND kind = 1
ORDER BY position
"""

# The chain is walked inside SQLite: four times as fast as a list of ancestors in each row, and the
# file is a third as large (measured). A response without items still gives a row, of NULLs: no row
# at all means that there is no such response. What a conversation gave comes before all else: a
# response in one continues no other. CROSS JOIN keeps SQLite from beginning with all items that the
# tenant has in conversations.
CONTEXT = """
WITH RECURSIVE chain (id, parent, depth, conversation, given) AS (
    SELECT id, parent, 0, conversation, given
    FROM responses WHERE tenant = ?1 AND id = ?2 AND body IS NOT NULL
    UNION ALL
    SELECT responses.id, responses.parent, depth + 1, responses.conversation, responses.given
    FROM chain JOIN responses ON responses.tenant = ?1 AND responses.id = chain.parent
)
SELECT item_id, body FROM (
    SELECT items.item_id, items.body, depth + 1 AS depth, 0 AS kind, items.place AS position
    FROM chain CROSS JOIN items
        ON items.tenant = ?1 AND items.conversation_id = chain.conversation
        AND items.place < chain.given
    UNION ALL
    SELECT items.item_id, items.body, depth, items.kind, items.position
    FROM chain LEFT JOIN items
        ON items.tenant = ?1 AND items.response_id = chain.id
        AND (items.kind = 0 OR chain.depth > 0 OR ?3)
)
ORDER BY depth DESC, kind, position
"""

ITEM = """
SELECT body FROM items WHERE tenant = ? AND item_id = ? ORDER BY number DESC LIMIT 1
"""

DELETE = """
UPDATE responses SET status = 'deleted', body = NULL, logged = 0, expires_at = NULL
WHERE tenant = ? AND id = ? AND body IS NOT NULL
RETURNING number
"""

REMOVE_REPEATS = """
DELETE FROM repeats INDEXED BY repeats_by_response WHERE tenant = ? AND response_id = ?
"""

PURGE = """
DELETE FROM responses
WHERE tenant = ?1 AND id = ?2 AND body IS NULL
    AND NOT EXISTS (SELECT 1 FROM responses WHERE tenant = ?1 AND parent = ?2)
RETURNING parent
"""

# What is in a conversation stays there. The plus keeps SQLite from looking for it among all items
# that the tenant has in conversations.
LEAVE_ITEMS = """
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

# A conversation without items still gives a row, of NULLs.
CONVERSATION_ITEMS = """
SELECT items.item_id, items.body
FROM conversations LEFT JOIN items
    ON items.tenant = ?1 AND items.conversation_id = conversations.id
WHERE conversations.tenant = ?1 AND conversations.id = ?2
ORDER BY place
"""

HAS_ITEM = "SELECT 1 FROM items WHERE tenant = ?1 AND conversation_id = ?2 AND item_id = ?3 LIMIT 1"

# Of all items where ?3 is NULL, else of those of one id: first those that are nobody else's.
REMOVE_OWN = """
DELETE FROM items
WHERE tenant = ?1 AND conversation_id = ?2 AND kind = 2 AND (?3 IS NULL OR item_id = ?3)
"""

REMOVE_SHARED = """
UPDATE items SET conversation_id = NULL, place = NULL
WHERE tenant = ?1 AND conversation_id = ?2 AND (?3 IS NULL OR item_id = ?3)
"""

ADD_OWN = """
INSERT INTO items (tenant, response_id, kind, position, item_id, body, conversation_id, place)
VALUES (?1, ?2, 2, ?3, ?4, ?5, ?2, ?3)
"""

ADD_SHARED = "UPDATE items SET conversation_id = ?, place = ? WHERE number = ?"

BROUGHT = "SELECT number FROM items WHERE tenant = ? AND response_id = ? ORDER BY kind, position"

MAKE_ROOM = """
UPDATE conversations SET next_place = next_place + ?3
WHERE tenant = ?1 AND id = ?2 AND held_by IS NULL
RETURNING next_place
"""

CLAIM = """
UPDATE conversations SET held_by = ?3, holder = ?4
WHERE tenant = ?1 AND id = ?2 AND held_by IS NULL
RETURNING id
"""

# A claim is void when its owner is dead and its response does not run.
DROP_VOID_CLAIM = """
UPDATE conversations SET held_by = NULL
WHERE tenant = ?1 AND id = ?2 AND held_by IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM servers
        WHERE owner = holder AND beat_at + ttl_s > ?3 AND beat_at <= ?3 + 1
    )
    AND NOT EXISTS (
        SELECT 1 FROM responses
        WHERE responses.tenant = ?1 AND responses.id = held_by
            AND status IN ('queued', 'in_progress')
    )
"""

RELEASE = """
UPDATE conversations SET held_by = NULL, next_place = next_place + ?4
WHERE tenant = ?1 AND id = ?2 AND held_by = ?3
RETURNING next_place
"""

RELEASE_OF = "UPDATE conversations SET held_by = NULL WHERE tenant = ? AND held_by = ?"

# The rest is over all tenants: it is for the server, not for a client.

PAST_THEIR_TIME = """
SELECT tenant, id FROM responses
WHERE expires_at <= ?1 AND conversation IS NULL AND status NOT IN ('queued', 'in_progress')
ORDER BY expires_at LIMIT ?2
"""

# Small indexes: what runs, or is in a conversation, is seldom past its time.
IS_ANY_OLD = """
SELECT 1 WHERE EXISTS (SELECT 1 FROM responses WHERE expires_at <= ?1)
    OR EXISTS (SELECT 1 FROM responses WHERE logged AND finished_at <= ?2)
    OR EXISTS (SELECT 1 FROM repeats WHERE expires_at <= ?1)
"""

OLD_LOGS = """
SELECT number FROM responses WHERE logged AND finished_at <= ? ORDER BY finished_at LIMIT ?
"""

REMOVE_OLD_REPEATS = """
DELETE FROM repeats
WHERE (tenant, key) IN (
    SELECT tenant, key FROM repeats WHERE expires_at <= ?1 LIMIT ?2
)
RETURNING 1
"""


# --- writes, in the writer's thread ---------------------------------------------------------------


def create(
    tenant: str, stored: StoredResponse, body: bytes, items: Sequence[Row], db: apsw.Connection
) -> None:
    response, run = stored.response, stored.run
    if run.key is not None and not rows_of(db, HAS_KEY, (tenant, run.key, response.id)):
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
    db.executemany(ADD_ITEM, items)
    if run.job is not None:
        db.execute(runs.ADD_JOB, (number, run.job))
    if run.events is not None:
        chunk = run.events
        db.execute(runs.BEGIN_LOG, (number, chunk.first, chunk.count, chunk.body))


class Ending(Struct, frozen=True):
    """All that `finish` writes, written down."""

    lease: Lease
    response: Response
    body: bytes
    output: Sequence[Row]
    events: EventChunk | None
    deliveries: Sequence[WebhookDelivery]


def finish(ending: Ending, now: float, db: apsw.Connection) -> bool:
    lease, response = ending.lease, ending.response
    # First the log, which is closed to whoever is not running.
    if ending.events is not None and not runs.append(lease, ending.events, db):
        return False
    row = (*runs.lease_row(lease), response.status, ending.body, now)
    finished = rows_of(db, FINISH, row)
    if not finished:
        return False
    db.execute(runs.REMOVE_JOB, finished[0])
    db.execute(REMOVE_OUTPUT, (lease.tenant, response.id))
    db.executemany(ADD_ITEM, ending.output)
    runs.add_notices(ending.deliveries, now, db)
    _leave_items(lease.tenant, response, db)
    return True


def _leave_items(tenant: str, response: Response, db: apsw.Connection) -> None:
    conversation_id = conversation_of(response)
    if conversation_id is None:
        return
    brought = rows_of(db, BROUGHT, (tenant, response.id)) if response.keeps_items else []
    for first in _released(tenant, conversation_id, response.id, len(brought), db):
        shared = [
            (conversation_id, place, number) for place, (number,) in enumerate(brought, first)
        ]
        db.executemany(ADD_SHARED, shared)


def delete(tenant: str, response_id: str, db: apsw.Connection) -> bool:
    deleted = rows_of(db, DELETE, (tenant, response_id))
    if not deleted:
        return False
    runs.forget_run(deleted[0][0], db)
    db.execute(REMOVE_REPEATS, (tenant, response_id))
    db.execute(RELEASE_OF, (tenant, response_id))
    # Items go once no response continues the one that brought them; so may those before it.
    unneeded: Any = response_id
    while purged := rows_of(db, PURGE, (tenant, unneeded)):
        db.execute(LEAVE_ITEMS, (tenant, unneeded))
        db.execute(REMOVE_ITEMS, (tenant, unneeded))
        unneeded = purged[0][0]
    return True


def sweep(now: float, logs_before: float, limit: int, db: apsw.Connection) -> int:
    old = rows_of(db, PAST_THEIR_TIME, (now, limit))
    for tenant, response_id in old:
        delete(tenant, response_id, db)
    logs = rows_of(db, OLD_LOGS, (logs_before, limit - len(old)))
    for log in logs:
        db.execute(runs.REMOVE_LOG, log)
        db.execute(runs.LOG_IS_GONE, log)
    repeats = rows_of(db, REMOVE_OLD_REPEATS, (now, limit - len(old) - len(logs)))
    return len(old) + len(logs) + len(repeats)


def create_conversation(row: Row, items: Sequence[Row], db: apsw.Connection) -> None:
    db.execute(CREATE_CONVERSATION, row)
    db.executemany(ADD_OWN, items)


def delete_conversation(tenant: str, conversation_id: str, db: apsw.Connection) -> None:
    if not db.execute(DELETE_CONVERSATION, (tenant, conversation_id)).fetchall():
        raise no_conversation(conversation_id)
    db.execute(REMOVE_OWN, (tenant, conversation_id, None))
    db.execute(REMOVE_SHARED, (tenant, conversation_id, None))


def remove_item(tenant: str, conversation_id: str, item_id: str, db: apsw.Connection) -> None:
    which = (tenant, conversation_id, item_id)
    if not db.execute(HAS_ITEM, which).fetchall():
        raise NotFound(f"There is no item {item_id!r} in conversation {conversation_id!r}.")
    db.execute(REMOVE_OWN, which)
    db.execute(REMOVE_SHARED, which)


def add_items(
    tenant: str,
    conversation_id: str,
    items: Sequence[StoredItem],
    uptime: Clock,
    db: apsw.Connection,
) -> None:
    db.execute(DROP_VOID_CLAIM, (tenant, conversation_id, uptime()))
    rows = rows_of(db, MAKE_ROOM, (tenant, conversation_id, len(items)))
    if not rows:
        raise _not_free(tenant, conversation_id, db)
    first = rows[0][0] - len(items)
    db.executemany(ADD_OWN, own_rows(tenant, conversation_id, first, items))


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
        raise _not_free(tenant, conversation_id, db)


def release(
    tenant: str,
    conversation_id: str,
    response_id: str,
    items: Sequence[StoredItem],
    db: apsw.Connection,
) -> None:
    for first in _released(tenant, conversation_id, response_id, len(items), db):
        db.executemany(ADD_OWN, own_rows(tenant, conversation_id, first, items))


def _released(
    tenant: str, conversation_id: str, response_id: str, count: int, db: apsw.Connection
) -> list[int]:
    """Free the conversation and return the first of `count` places; nothing if it was not held."""
    rows = rows_of(db, RELEASE, (tenant, conversation_id, response_id, count))
    return [end - count for (end,) in rows]


def _not_free(tenant: str, conversation_id: str, db: apsw.Connection) -> RequestError:
    there = db.execute(GET_CONVERSATION, (tenant, conversation_id)).fetchall()
    return ConversationLocked() if there else no_conversation(conversation_id)


def no_conversation(conversation_id: str) -> NotFound:
    return NotFound(f"There is no conversation {conversation_id!r}.")


# --- rows -----------------------------------------------------------------------------------------


def item_rows(tenant: str, response_id: str, kind: int, items: Sequence[StoredItem]) -> list[Row]:
    return [
        (tenant, response_id, kind, position, item.id or None, bytes(item.raw))
        for position, item in enumerate(items)
    ]


def own_rows(
    tenant: str, conversation_id: str, first: int, items: Sequence[StoredItem]
) -> list[Row]:
    return [
        (tenant, conversation_id, place, item.id or None, bytes(item.raw))
        for place, item in enumerate(items, first)
    ]


def conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None


def items_of(rows: Sequence[Row], response_id: str) -> list[StoredItem]:
    if not rows:
        raise runs.no_response(response_id)
    return as_items(rows)


def as_items(rows: Sequence[Row]) -> list[StoredItem]:
    return [StoredItem(id=item_id or "", raw=Raw(body)) for item_id, body in rows if body]
