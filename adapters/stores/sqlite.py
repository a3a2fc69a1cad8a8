"""Responses in one SQLite file, for one or several processes of one machine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Raw

from antiphon.adapters.stores.sqlite_file import SqliteFile
from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
from antiphon.application.ports import Claim, ResponseStore, StoredItem, StoredResponse
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import (
    ConversationLocked,
    NotFound,
    RequestError,
    SettingsError,
    StoreError,
)
from antiphon.domain.response import Response

Row = tuple[Any, ...]

INPUT, OUTPUT = 0, 1  # and 2: items that are the conversation's alone

# A parent that is unknown, deleted or another tenant's is no parent.
CREATE = """
INSERT INTO responses (tenant, id, parent, status, created_at, body, conversation, given)
VALUES (?1, ?2, (SELECT id FROM responses WHERE tenant = ?1 AND id = ?3 AND body IS NOT NULL),
        ?4, ?5, ?6, ?7, (SELECT next_place FROM conversations WHERE tenant = ?1 AND id = ?7))
"""

ADD_ITEM = """
INSERT INTO items (tenant, response_id, kind, position, item_id, body) VALUES (?, ?, ?, ?, ?, ?)
"""

FINISH = """
UPDATE responses SET status = ?3, body = ?4
WHERE tenant = ?1 AND id = ?2 AND status IN ('queued', 'in_progress')
RETURNING id
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
UPDATE responses SET status = 'deleted', body = NULL
WHERE tenant = ? AND id = ? AND body IS NOT NULL
RETURNING id
"""

PURGE = """
DELETE FROM responses
WHERE tenant = ?1 AND id = ?2 AND body IS NULL
    AND NOT EXISTS (SELECT 1 FROM responses WHERE tenant = ?1 AND parent = ?2)
RETURNING parent
"""

# What is in a conversation stays there.
LEAVE_ITEMS = """
UPDATE items SET response_id = conversation_id, kind = 2, position = place
WHERE tenant = ? AND response_id = ? AND conversation_id IS NOT NULL
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
UPDATE conversations SET held_by = ?3 WHERE tenant = ?1 AND id = ?2 AND held_by IS NULL
RETURNING id
"""

RELEASE = """
UPDATE conversations SET held_by = NULL, next_place = next_place + ?4
WHERE tenant = ?1 AND id = ?2 AND held_by = ?3
RETURNING next_place
"""

RELEASE_OF = "UPDATE conversations SET held_by = NULL WHERE tenant = ? AND held_by = ?"

# These two are over all tenants: they are for the server, not for a client.
CLAIMS = """
SELECT tenant, id, held_by FROM conversations WHERE held_by IS NOT NULL ORDER BY number
"""

UNFINISHED = """
SELECT tenant, body FROM responses WHERE status IN ('queued', 'in_progress') ORDER BY number
"""


class SqliteResponseStore(ResponseStore):
    """Nothing of a deleted response stays in the file once no other response continues it.

    `busy_s`: how long a write waits for one of another process.
    """

    def __init__(self, path: Path, *, busy_s: float = 5.0) -> None:
        self._path = path
        self._file = SqliteFile(path, busy_s=busy_s)

    async def start(self) -> None:
        await self._file.start()
        try:
            await self._prove()
        except StoreError as error:
            await self.aclose()
            raise SettingsError(str(error)) from error

    async def aclose(self) -> None:
        await self._file.aclose()

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        response = stored.response
        row = (
            tenant,
            response.id,
            response.previous_response_id,
            response.status,
            response.created_at,
            body_of(response),
            _conversation_of(response),
        )
        items = _rows(tenant, response.id, INPUT, stored.input)
        items += _rows(tenant, response.id, OUTPUT, output_of(response))
        await self._file.write(partial(_create, row, items))

    async def finish(self, tenant: str, response: Response) -> bool:
        row = (tenant, response.id, response.status, body_of(response))
        items = _rows(tenant, response.id, OUTPUT, output_of(response))
        return await self._file.write(partial(_finish, row, items, response))

    async def get(self, tenant: str, response_id: str) -> Response:
        rows = await self._select(GET, tenant, response_id)
        if not rows or rows[0][0] != -1:
            raise NotFound(f"There is no response {response_id!r}.")
        return response_from(rows[0][1], [body for _, body in rows[1:]])

    async def input_items(self, tenant: str, response_id: str) -> list[StoredItem]:
        return _items(await self._select(CONTEXT, tenant, response_id, False), response_id)

    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        return _items(await self._select(CONTEXT, tenant, response_id, True), response_id)

    async def item(self, tenant: str, item_id: str) -> StoredItem:
        rows = await self._select(ITEM, tenant, item_id)
        if not rows:
            raise NotFound(f"There is no item {item_id!r}.")
        return StoredItem(id=item_id, raw=Raw(rows[0][0]))

    async def delete(self, tenant: str, response_id: str) -> None:
        if not await self._file.erase(partial(_delete, tenant, response_id)):
            raise NotFound(f"There is no response {response_id!r}.")

    async def unfinished(self) -> list[tuple[str, Response]]:
        return [
            (tenant, response_from(body, [])) for tenant, body in await self._select(UNFINISHED)
        ]

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        row = (
            tenant,
            conversation.id,
            conversation.created_at,
            msgspec.json.encode(conversation.metadata),
            len(items),
        )
        own = _own_rows(tenant, conversation.id, 0, items)
        await self._file.write(partial(_create_conversation, row, own))

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        rows = await self._select(GET_CONVERSATION, tenant, conversation_id)
        if not rows:
            raise _no_conversation(conversation_id)
        created_at, metadata = rows[0]
        return Conversation(
            id=conversation_id, created_at=created_at, metadata=msgspec.json.decode(metadata)
        )

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        values = (tenant, conversation_id, msgspec.json.encode(metadata))
        rows: list[Row] = await self._file.write(
            lambda db: db.execute(UPDATE_CONVERSATION, values).fetchall()
        )
        if not rows:
            raise _no_conversation(conversation_id)
        return Conversation(id=conversation_id, created_at=rows[0][0], metadata=dict(metadata))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        await self._file.erase(partial(_delete_conversation, tenant, conversation_id))

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[StoredItem]:
        rows = await self._select(CONVERSATION_ITEMS, tenant, conversation_id)
        if not rows:
            raise _no_conversation(conversation_id)
        return _stored(rows)

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        await self._file.write(partial(_add_items, tenant, conversation_id, items))

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        await self._file.erase(partial(_remove_item, tenant, conversation_id, item_id))

    async def claim(self, tenant: str, conversation_id: str, response_id: str) -> None:
        await self._file.write(partial(_claim, tenant, conversation_id, response_id))

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        await self._file.write(partial(_release, tenant, conversation_id, response_id, items))

    async def claims(self) -> list[Claim]:
        return [
            Claim(tenant=tenant, conversation_id=conversation_id, response_id=response_id)
            for tenant, conversation_id, response_id in await self._select(CLAIMS)
        ]

    async def _select(self, query: str, *values: str | bool) -> list[Row]:
        rows: list[Row] = await self._file.read(lambda db: db.execute(query, values).fetchall())
        return rows

    async def _prove(self) -> None:
        """Write, read and delete a response, just as clients' are.

        It is finished from the start: if this process died now, nobody would take it for a run.
        """
        proof = Response(
            id=f"proof_{secrets.token_hex(8)}", created_at=0, status="completed", model=""
        )
        await self.create("", StoredResponse(response=proof))
        try:
            proved = await self.get("", proof.id) == proof
            await self.delete("", proof.id)
        except NotFound:
            proved = False
        if not proved:
            raise StoreError(f"The store {str(self._path)!r} does not return what was written.")


# --- writes, in the writer's thread ---------------------------------------------------------------


def _create(row: Row, items: Sequence[Row], db: apsw.Connection) -> None:
    db.execute(CREATE, row)
    db.executemany(ADD_ITEM, items)


def _finish(row: Row, output: Sequence[Row], response: Response, db: apsw.Connection) -> bool:
    if not db.execute(FINISH, row).fetchall():
        return False
    tenant, response_id = key = row[:2]
    db.execute(REMOVE_OUTPUT, key)
    db.executemany(ADD_ITEM, output)
    conversation_id = _conversation_of(response)
    if conversation_id is not None:
        brought = _rows_of(db, BROUGHT, key) if response.leaves_items else []
        for first in _released(tenant, conversation_id, response_id, len(brought), db):
            shared = [
                (conversation_id, place, number) for place, (number,) in enumerate(brought, first)
            ]
            db.executemany(ADD_SHARED, shared)
    return True


def _delete(tenant: str, response_id: str, db: apsw.Connection) -> bool:
    if not db.execute(DELETE, (tenant, response_id)).fetchall():
        return False
    db.execute(RELEASE_OF, (tenant, response_id))
    # Items go once no response continues the one that brought them; so may those before it.
    unneeded: Any = response_id
    while purged := db.execute(PURGE, (tenant, unneeded)).fetchall():
        db.execute(LEAVE_ITEMS, (tenant, unneeded))
        db.execute(REMOVE_ITEMS, (tenant, unneeded))
        unneeded = purged[0][0]
    return True


def _create_conversation(row: Row, items: Sequence[Row], db: apsw.Connection) -> None:
    db.execute(CREATE_CONVERSATION, row)
    db.executemany(ADD_OWN, items)


def _delete_conversation(tenant: str, conversation_id: str, db: apsw.Connection) -> None:
    if not db.execute(DELETE_CONVERSATION, (tenant, conversation_id)).fetchall():
        raise _no_conversation(conversation_id)
    db.execute(REMOVE_OWN, (tenant, conversation_id, None))
    db.execute(REMOVE_SHARED, (tenant, conversation_id, None))


def _remove_item(tenant: str, conversation_id: str, item_id: str, db: apsw.Connection) -> None:
    which = (tenant, conversation_id, item_id)
    if not db.execute(HAS_ITEM, which).fetchall():
        raise NotFound(f"There is no item {item_id!r} in conversation {conversation_id!r}.")
    db.execute(REMOVE_OWN, which)
    db.execute(REMOVE_SHARED, which)


def _add_items(
    tenant: str, conversation_id: str, items: Sequence[StoredItem], db: apsw.Connection
) -> None:
    rows = _rows_of(db, MAKE_ROOM, (tenant, conversation_id, len(items)))
    if not rows:
        raise _not_free(tenant, conversation_id, db)
    first = rows[0][0] - len(items)
    db.executemany(ADD_OWN, _own_rows(tenant, conversation_id, first, items))


def _claim(tenant: str, conversation_id: str, response_id: str, db: apsw.Connection) -> None:
    if not db.execute(CLAIM, (tenant, conversation_id, response_id)).fetchall():
        raise _not_free(tenant, conversation_id, db)


def _release(
    tenant: str,
    conversation_id: str,
    response_id: str,
    items: Sequence[StoredItem],
    db: apsw.Connection,
) -> None:
    for first in _released(tenant, conversation_id, response_id, len(items), db):
        db.executemany(ADD_OWN, _own_rows(tenant, conversation_id, first, items))


def _released(
    tenant: str, conversation_id: str, response_id: str, count: int, db: apsw.Connection
) -> list[int]:
    """Free the conversation and return the first of `count` places; nothing if it was not held."""
    rows = _rows_of(db, RELEASE, (tenant, conversation_id, response_id, count))
    return [end - count for (end,) in rows]


def _not_free(tenant: str, conversation_id: str, db: apsw.Connection) -> RequestError:
    there = db.execute(GET_CONVERSATION, (tenant, conversation_id)).fetchall()
    return ConversationLocked() if there else _no_conversation(conversation_id)


def _no_conversation(conversation_id: str) -> NotFound:
    return NotFound(f"There is no conversation {conversation_id!r}.")


# --- rows -----------------------------------------------------------------------------------------


def _rows_of(db: apsw.Connection, query: str, values: Row) -> list[Row]:
    rows: list[Row] = db.execute(query, values).fetchall()
    return rows


def _rows(tenant: str, response_id: str, kind: int, items: Sequence[StoredItem]) -> list[Row]:
    return [
        (tenant, response_id, kind, position, item.id or None, bytes(item.raw))
        for position, item in enumerate(items)
    ]


def _own_rows(
    tenant: str, conversation_id: str, first: int, items: Sequence[StoredItem]
) -> list[Row]:
    return [
        (tenant, conversation_id, place, item.id or None, bytes(item.raw))
        for place, item in enumerate(items, first)
    ]


def _conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None


def _items(rows: Sequence[Row], response_id: str) -> list[StoredItem]:
    if not rows:
        raise NotFound(f"There is no response {response_id!r}.")
    return _stored(rows)


def _stored(rows: Sequence[Row]) -> list[StoredItem]:
    return [StoredItem(id=item_id or "", raw=Raw(body)) for item_id, body in rows if body]
