"""Responses in one SQLite file, for one or several processes of one machine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
from msgspec import Raw

from antiphon.adapters.stores.sqlite_file import SqliteFile
from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
from antiphon.application.ports import ResponseStore, StoredItem, StoredResponse
from antiphon.domain.errors import NotFound, SettingsError, StoreError
from antiphon.domain.response import Response

Row = tuple[Any, ...]

INPUT, OUTPUT = 0, 1

# A parent that is unknown, deleted or another tenant's is no parent.
CREATE = """
INSERT INTO responses (tenant, id, parent, status, created_at, body)
VALUES (?1, ?2, (SELECT id FROM responses WHERE tenant = ?1 AND id = ?3 AND body IS NOT NULL),
        ?4, ?5, ?6)
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
# at all means that there is no such response.
CONTEXT = """
WITH RECURSIVE chain (id, parent, depth) AS (
    SELECT id, parent, 0 FROM responses WHERE tenant = ?1 AND id = ?2 AND body IS NOT NULL
    UNION ALL
    SELECT responses.id, responses.parent, depth + 1
    FROM chain JOIN responses ON responses.tenant = ?1 AND responses.id = chain.parent
)
SELECT items.item_id, items.body
FROM chain LEFT JOIN items
    ON items.tenant = ?1 AND items.response_id = chain.id
    AND (items.kind = 0 OR chain.depth > 0 OR ?3)
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

REMOVE_ITEMS = "DELETE FROM items WHERE tenant = ? AND response_id = ?"

# The one query over all tenants: it is for the server, not for a client.
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
        )
        items = _rows(tenant, response.id, INPUT, stored.input)
        items += _rows(tenant, response.id, OUTPUT, output_of(response))
        await self._file.write(partial(_create, row, items))

    async def finish(self, tenant: str, response: Response) -> bool:
        row = (tenant, response.id, response.status, body_of(response))
        items = _rows(tenant, response.id, OUTPUT, output_of(response))
        return await self._file.write(partial(_finish, row, items))

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


def _finish(row: Row, output: Sequence[Row], db: apsw.Connection) -> bool:
    if not db.execute(FINISH, row).fetchall():
        return False
    db.execute(REMOVE_OUTPUT, row[:2])
    db.executemany(ADD_ITEM, output)
    return True


def _delete(tenant: str, response_id: str, db: apsw.Connection) -> bool:
    if not db.execute(DELETE, (tenant, response_id)).fetchall():
        return False
    # Items go once no response continues the one that brought them; so may those before it.
    unneeded: Any = response_id
    while purged := db.execute(PURGE, (tenant, unneeded)).fetchall():
        db.execute(REMOVE_ITEMS, (tenant, unneeded))
        unneeded = purged[0][0]
    return True


# --- rows -----------------------------------------------------------------------------------------


def _rows(tenant: str, response_id: str, kind: int, items: Sequence[StoredItem]) -> list[Row]:
    return [
        (tenant, response_id, kind, position, item.id or None, bytes(item.raw))
        for position, item in enumerate(items)
    ]


def _items(rows: Sequence[Row], response_id: str) -> list[StoredItem]:
    if not rows:
        raise NotFound(f"There is no response {response_id!r}.")
    return [StoredItem(id=item_id or "", raw=Raw(body)) for item_id, body in rows if body]
