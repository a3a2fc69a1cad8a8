"""All that is kept, in one SQLite file, for one or several processes of one machine.

The statements on responses and conversations are in sqlite_responses.py, those on runs and their
logs in sqlite_runs.py; threads and transactions are in sqlite_file.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Raw

from antiphon.adapters.stores import sqlite_responses as of
from antiphon.adapters.stores import sqlite_runs as runs
from antiphon.adapters.stores.self_test import round_trips
from antiphon.adapters.stores.sqlite_file import Row, SqliteFile, rows_of
from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
from antiphon.application.ports import (
    LOG_READ_BYTES,
    ApiKey,
    Clock,
    EventChunk,
    IdempotencyRecord,
    Lease,
    LeasedRun,
    LogSlice,
    StorageUsage,
    Store,
    StoredItem,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import NotFound, SettingsError, StoreError
from antiphon.domain.response import Response

SWEPT_AT_ONCE = 100
"""What is swept in one transaction: other writes wait for no more."""

# Of a server that is never alive.
CHECK = """
INSERT INTO servers (owner, beat_at, ttl_s) VALUES ('', ?1, 0)
ON CONFLICT (owner) DO UPDATE SET beat_at = ?1
"""

USAGE = """
SELECT coalesce(sum(responses), 0), coalesce(sum(bytes), 0), (
    SELECT count(*) FROM responses INDEXED BY responses_running
    WHERE tenant = ?1 AND owner IS NULL AND status IN ('queued', 'in_progress')
)
FROM uses WHERE tenant = ?1
"""

# A key is free when its response is not stored and its owner is dead.
RESERVE = """
INSERT INTO repeats (tenant, key, response_id, fingerprint, owner, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (tenant, key) DO UPDATE
SET response_id = excluded.response_id, fingerprint = excluded.fingerprint,
    owner = excluded.owner, expires_at = excluded.expires_at
WHERE NOT EXISTS (
        SELECT 1 FROM servers
        WHERE servers.owner = repeats.owner AND beat_at + ttl_s > ?7 AND beat_at <= ?7 + 1
    )
    AND NOT EXISTS (
        SELECT 1 FROM responses
        WHERE responses.tenant = ?1 AND responses.id = repeats.response_id AND body IS NOT NULL
    )
"""

REPEAT = """
SELECT response_id, fingerprint, EXISTS (
    SELECT 1 FROM responses
    WHERE responses.tenant = ?1 AND responses.id = repeats.response_id AND body IS NOT NULL
)
FROM repeats WHERE tenant = ?1 AND key = ?2
"""

UNRESERVE = """
DELETE FROM repeats WHERE tenant = ?1 AND key = ?2 AND response_id = ?3 AND NOT EXISTS (
    SELECT 1 FROM responses WHERE tenant = ?1 AND id = ?3 AND body IS NOT NULL
)
"""

IS_ANY_DUE = "SELECT 1 FROM notices WHERE due_at <= ? LIMIT 1"

DUE = """
SELECT id, tenant, endpoint, body, attempts FROM notices
WHERE due_at <= ? ORDER BY due_at, rowid LIMIT ?
"""

HOLD = "UPDATE notices SET attempts = attempts + 1, due_at = ? WHERE id = ?"

DELAY = "UPDATE notices SET due_at = ? WHERE id = ?"

REMOVE_NOTICE = "DELETE FROM notices WHERE id = ?"

ADD_KEY = "INSERT INTO api_keys (id, name, tenant, hash, created_at) VALUES (?, ?, ?, ?, ?)"

KEYS = "SELECT id, name, tenant, hash, created_at FROM api_keys ORDER BY number"

KEY = "SELECT id, name, tenant, hash, created_at FROM api_keys WHERE hash = ?"

REVOKE_KEY = "DELETE FROM api_keys WHERE id = ? RETURNING id"

AGREE = """
INSERT INTO agreed (name, value) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE agreed.value = ?3
"""

AGREED = "SELECT value FROM agreed WHERE name = ?"


class SqliteStore(Store):
    """Nothing of a deleted response stays in the file once no other response continues it.

    `busy_s`: how long a write waits for one of another process. `uptime` is a clock that all
    processes on the file share, and that nobody sets: owners are dead or alive by it.
    """

    def __init__(
        self,
        path: Path,
        *,
        busy_s: float = 5.0,
        clock: Clock = time.time,
        uptime: Clock = time.monotonic,
    ) -> None:
        self._path = path
        self._clock = clock
        self._uptime = uptime
        self._file = SqliteFile(path, busy_s=busy_s)
        self._news = runs.News(self._file)

    async def start(self) -> None:
        # Owners that nobody shares the file with died without a word: their runs wait for no lease.
        await self._file.start(alone=runs.all_dead)
        try:
            await self._prove()
        except StoreError as error:
            await self.aclose()
            raise SettingsError(str(error)) from error

    async def aclose(self) -> None:
        await self._news.aclose()
        await self._file.aclose()

    async def check(self) -> None:
        await self._change(CHECK, self._uptime())

    # --- responses --------------------------------------------------------------------------------

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        response = stored.response
        items = of.item_rows(tenant, response.id, of.INPUT, stored.input)
        items += of.item_rows(tenant, response.id, of.OUTPUT, output_of(response))
        await self._file.write(partial(of.create, tenant, stored, body_of(response), items))

    async def finish(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        output = of.item_rows(lease.tenant, response.id, of.OUTPUT, output_of(response))
        ending = of.Ending(lease, response, body_of(response), output, events, deliveries)
        finished = await self._file.write(partial(of.finish, ending, self._clock()))
        self._news.tell(lease.tenant, lease.response_id)
        return finished

    async def get(self, tenant: str, response_id: str) -> Response:
        rows = await self._select(of.GET, tenant, response_id)
        if not rows or rows[0][0] != -1:
            raise runs.no_response(response_id)
        return response_from(rows[0][1], [body for _, body in rows[1:]])

    async def input_items(self, tenant: str, response_id: str) -> list[StoredItem]:
        return of.items_of(await self._select(of.CONTEXT, tenant, response_id, False), response_id)

    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        return of.items_of(await self._select(of.CONTEXT, tenant, response_id, True), response_id)

    async def item(self, tenant: str, item_id: str) -> StoredItem:
        rows = await self._select(of.ITEM, tenant, item_id)
        if not rows:
            raise NotFound(f"There is no item {item_id!r}.")
        return StoredItem(id=item_id, raw=Raw(rows[0][0]))

    async def delete(self, tenant: str, response_id: str) -> None:
        if not await self._file.erase(partial(of.delete, tenant, response_id)):
            raise runs.no_response(response_id)
        self._news.tell(tenant, response_id)

    async def usage(self, tenant: str) -> StorageUsage:
        [(responses, size, waiting)] = await self._select(USAGE, tenant)
        return StorageUsage(responses=responses, bytes=size, waiting=waiting)

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        now = self._clock()
        await self._file.write(partial(runs.forget_dead, self._uptime))
        swept = 0
        while swept < limit:
            part = min(SWEPT_AT_ONCE, limit - swept)
            if not await self._select(of.IS_ANY_OLD, now, now - keep_events_s):
                break
            found = await self._file.erase(partial(of.sweep, now, now - keep_events_s, part))
            swept += found
            if found < part:
                break
        return swept

    # --- conversations ----------------------------------------------------------------------------

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
        own = of.own_rows(tenant, conversation.id, 0, items)
        await self._file.write(partial(of.create_conversation, row, own))

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        rows = await self._select(of.GET_CONVERSATION, tenant, conversation_id)
        if not rows:
            raise of.no_conversation(conversation_id)
        created_at, metadata = rows[0]
        return Conversation(
            id=conversation_id, created_at=created_at, metadata=msgspec.json.decode(metadata)
        )

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        rows = await self._change(
            of.UPDATE_CONVERSATION, tenant, conversation_id, msgspec.json.encode(metadata)
        )
        if not rows:
            raise of.no_conversation(conversation_id)
        return Conversation(id=conversation_id, created_at=rows[0][0], metadata=dict(metadata))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        await self._file.erase(partial(of.delete_conversation, tenant, conversation_id))

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[StoredItem]:
        rows = await self._select(of.CONVERSATION_ITEMS, tenant, conversation_id)
        if not rows:
            raise of.no_conversation(conversation_id)
        return of.as_items(rows)

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        await self._file.write(partial(of.add_items, tenant, conversation_id, items, self._uptime))

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        await self._file.erase(partial(of.remove_item, tenant, conversation_id, item_id))

    async def claim(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        await self._file.write(
            partial(of.claim, tenant, conversation_id, response_id, owner, self._uptime)
        )

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        await self._file.write(partial(of.release, tenant, conversation_id, response_id, items))

    # --- runs -------------------------------------------------------------------------------------

    def beat(self, owner: str, ttl_s: float) -> None:
        self._file.write_here(partial(runs.beat, owner, ttl_s, self._uptime))

    async def leave(self, owner: str) -> None:
        await self._change(runs.LEAVE, owner)

    async def lease_runs(self, owner: str, *, limit: int, waiting: bool = True) -> list[LeasedRun]:
        # Most of the time there is nothing: asking keeps no other process from writing.
        if limit < 1 or not await self._select(runs.CAN_TAKE, self._uptime(), waiting):
            return []
        return await self._file.write(partial(runs.take, owner, limit, waiting, self._uptime))

    async def take_over(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        return await self._file.write(partial(runs.take_over, owner, tenant, response_id))

    async def give_back(self, lease: Lease) -> bool:
        return bool(await self._change(runs.GIVE_BACK, *runs.lease_row(lease)))

    async def held_leases(self, owner: str) -> list[Lease]:
        return [
            Lease(tenant=tenant, response_id=response_id, epoch=epoch)
            for tenant, response_id, epoch in await self._select(runs.HELD, owner)
        ]

    async def append(self, lease: Lease, events: EventChunk) -> bool:
        added = await self._file.write(partial(runs.append, lease, events))
        self._news.tell(lease.tenant, lease.response_id)
        return added

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        return await self._file.read(partial(runs.events, tenant, response_id, after, limit_bytes))

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        await self._news.wait(tenant, response_id, after, limit_s)

    # --- Idempotency-Keys -------------------------------------------------------------------------

    async def reserve(
        self,
        tenant: str,
        key: str,
        *,
        response_id: str,
        fingerprint: bytes,
        owner: str,
        expires_at: float,
    ) -> IdempotencyRecord:
        row = (tenant, key, response_id, fingerprint, owner, expires_at)

        def work(db: apsw.Connection) -> Row:
            db.execute(RESERVE, (*row, self._uptime()))
            return rows_of(db, REPEAT, (tenant, key))[0]

        has_it, given, exists = await self._file.write(work)
        return IdempotencyRecord(response_id=has_it, fingerprint=given, exists=bool(exists))

    async def unreserve(self, tenant: str, key: str, response_id: str) -> None:
        await self._change(UNRESERVE, tenant, key, response_id)

    # --- webhooks ---------------------------------------------------------------------------------

    async def claim_due(self, *, limit: int, claim_s: float) -> list[WebhookDelivery]:
        if not await self._select(IS_ANY_DUE, self._clock()):
            return []
        rows = await self._file.write(partial(_due, limit, claim_s, self._clock()))
        return [
            WebhookDelivery(id=row[0], tenant=row[1], endpoint=row[2], body=row[3], attempts=row[4])
            for row in rows
        ]

    async def delay(self, delivery_id: str, seconds: float) -> None:
        await self._change(DELAY, self._clock() + seconds, delivery_id)

    async def remove(self, delivery_id: str) -> None:
        await self._change(REMOVE_NOTICE, delivery_id)

    # --- API keys ---------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey) -> None:
        await self._change(ADD_KEY, key.id, key.name, key.tenant, key.hash, key.created_at)

    async def keys(self) -> list[ApiKey]:
        return [_key(row) for row in await self._select(KEYS)]

    async def key(self, hash: bytes) -> ApiKey | None:
        rows = await self._select(KEY, hash)
        return _key(rows[0]) if rows else None

    async def revoke_key(self, key_id: str) -> bool:
        return bool(await self._change(REVOKE_KEY, key_id))

    # --- agreements -------------------------------------------------------------------------------

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        def work(db: apsw.Connection) -> bytes:
            db.execute(AGREE, (name, value, expected))
            kept: bytes = rows_of(db, AGREED, (name,))[0][0]
            return kept

        return await self._file.write(work)

    # --- all of them ------------------------------------------------------------------------------

    async def _select(self, query: str, *values: Any) -> list[Row]:
        return await self._file.read(lambda db: rows_of(db, query, values))

    async def _change(self, query: str, *values: Any) -> list[Row]:
        return await self._file.write(lambda db: rows_of(db, query, values))

    async def _prove(self) -> None:
        if not await round_trips(self):
            raise StoreError(f"The store {str(self._path)!r} does not return what was written.")


def _due(limit: int, claim_s: float, now: float, db: apsw.Connection) -> list[Row]:
    rows = rows_of(db, DUE, (now, limit))
    db.executemany(HOLD, [(now + claim_s, row[0]) for row in rows])
    return rows


def _key(row: Row) -> ApiKey:
    return ApiKey(id=row[0], name=row[1], tenant=row[2], hash=row[3], created_at=row[4])
