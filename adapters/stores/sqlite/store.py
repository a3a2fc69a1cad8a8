"""A store in one SQLite file, for one or several processes of one machine.

The statements for responses and conversations are in responses.py, those for runs and their
logs in runs.py. Threads and transactions are in file.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Raw

from antiphon.adapters.stores.item_ranges import INPUT, OUTPUT
from antiphon.adapters.stores.not_found import (
    conversation_not_found,
    item_not_found,
    response_not_found,
)
from antiphon.adapters.stores.self_test import round_trips
from antiphon.adapters.stores.sqlite import lists, responses, runs, traces, usage
from antiphon.adapters.stores.sqlite.file import Row, SqliteFile, Work, rows_of
from antiphon.adapters.stores.sqlite.items import (
    CONVERSATION_ITEM,
    read_context,
    read_conversation,
    read_input_page,
)
from antiphon.adapters.stores.sqlite.reserve import check_room
from antiphon.adapters.stores.sqlite.search import search_responses
from antiphon.adapters.stores.stored_json import (
    api_key_from,
    body_of,
    output_of,
    policy_body,
    response_from,
)
from antiphon.application.ports import (
    LOG_READ_BYTES,
    NO_RUNS,
    ApiKey,
    Charge,
    Clock,
    EventChunk,
    FoundPage,
    IdempotencyRecord,
    KeyUsage,
    Lease,
    LeasedRun,
    LogSlice,
    RunSlot,
    StorageUsage,
    Store,
    StoredItem,
    StoredResponse,
    StorePageQuery,
    WebhookDelivery,
)
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import NotFound, SettingsError, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.text_search import TextSearch

READERS = 2
"""Threads that read: a long history of one tenant holds up no read of another."""

SWEEP_BATCH = 100
"""The most that one transaction sweeps, so that other writes do not wait long."""

# Writes the row of a server that is never alive.
WRITE_PROBE = """
INSERT INTO servers (owner, beat_at, ttl_s) VALUES ('', ?1, 0)
ON CONFLICT (owner) DO UPDATE SET beat_at = ?1
"""

USAGE = """
SELECT coalesce(sum(responses), 0), coalesce(sum(bytes), 0), (
    SELECT count(*) FROM responses INDEXED BY responses_running
    WHERE tenant = ?1 AND owner IS NULL AND status IN ('queued', 'in_progress')
)
FROM storage_usage WHERE tenant = ?1
"""

# A key is free if its response is not stored and its owner is dead.
RESERVE = """
INSERT INTO idempotency_keys AS k (tenant, key, response_id, fingerprint, owner, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (tenant, key) DO UPDATE
SET response_id = excluded.response_id, fingerprint = excluded.fingerprint,
    owner = excluded.owner, expires_at = excluded.expires_at
WHERE NOT EXISTS (
        SELECT 1 FROM servers
        WHERE servers.owner = k.owner AND beat_at + ttl_s > ?7 AND beat_at <= ?7 + 1
    )
    AND NOT EXISTS (
        SELECT 1 FROM responses
        WHERE responses.tenant = ?1 AND responses.id = k.response_id AND body IS NOT NULL
    )
"""

GET_RESERVATION = """
SELECT response_id, fingerprint, EXISTS (
    SELECT 1 FROM responses
    WHERE responses.tenant = ?1 AND responses.id = k.response_id AND body IS NOT NULL
)
FROM idempotency_keys AS k WHERE tenant = ?1 AND key = ?2
"""

UNRESERVE = """
DELETE FROM idempotency_keys WHERE tenant = ?1 AND key = ?2 AND response_id = ?3 AND NOT EXISTS (
    SELECT 1 FROM responses WHERE tenant = ?1 AND id = ?3 AND body IS NOT NULL
)
"""

IS_ANY_DELIVERY_DUE = """
SELECT 1 FROM webhook_deliveries
WHERE due_at <= ? AND endpoint NOT IN (SELECT value FROM json_each(?)) LIMIT 1
"""

DUE_DELIVERIES = """
SELECT id, tenant, endpoint, body, attempts FROM webhook_deliveries
WHERE due_at <= ? AND endpoint NOT IN (SELECT value FROM json_each(?))
ORDER BY due_at, rowid LIMIT ?
"""

CLAIM_DELIVERY = "UPDATE webhook_deliveries SET attempts = attempts + 1, due_at = ? WHERE id = ?"

DELAY_DELIVERY = "UPDATE webhook_deliveries SET due_at = ? WHERE id = ?"

REMOVE_DELIVERY = "DELETE FROM webhook_deliveries WHERE id = ?"

ADD_KEY = """
INSERT INTO api_keys (id, name, tenant, hash, created_at, policy) VALUES (?, ?, ?, ?, ?, ?)
"""

LIST_KEYS = "SELECT id, name, tenant, hash, created_at, policy FROM api_keys ORDER BY number"

GET_KEY = "SELECT id, name, tenant, hash, created_at, policy FROM api_keys WHERE hash = ?"

UPDATE_KEY = "UPDATE api_keys SET policy = ? WHERE id = ? RETURNING id"

REVOKE_KEY = "DELETE FROM api_keys WHERE id = ? RETURNING id"

COMPARE_AND_SET = """
INSERT INTO shared_values (name, value) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE shared_values.value = ?3
"""

GET_SHARED_VALUE = "SELECT value FROM shared_values WHERE name = ?"


class SqliteStore(Store):
    """A store that leaves no trace of a deleted response once no other response continues it.

    `busy_s` is how long a write waits for another process. `uptime` is a monotonic clock that all
    processes share; it decides which owners are alive.
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
        self._file = SqliteFile(path, busy_s=busy_s, readers=READERS)
        self._notifications = runs.SqliteNotifications(self._file)

    async def start(self) -> None:
        # If no other process has the file open, all owners in it are dead: free their runs now.
        await self._file.start(alone=runs.remove_all_servers)
        try:
            await self._self_test()
        except StoreError as error:
            await self.aclose()
            raise SettingsError(str(error)) from error

    async def aclose(self) -> None:
        await self._notifications.aclose()
        await self._file.aclose()

    async def check(self) -> None:
        await self._file.read(check_room)
        await self._change(WRITE_PROBE, self._uptime())

    # --- responses --------------------------------------------------------------------------------

    async def create_response(self, tenant: str, stored: StoredResponse) -> None:
        response = stored.response
        items = responses.item_rows(tenant, response.id, INPUT, stored.input)
        items += responses.item_rows(tenant, response.id, OUTPUT, output_of(response))
        await self._file.write(partial(responses.create, tenant, stored, body_of(response), items))

    async def finish_response(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        output = responses.item_rows(lease.tenant, response.id, OUTPUT, output_of(response))
        row = responses.FinishedRow(lease, response, body_of(response), output, events, deliveries)
        finished = await self._file.write(partial(responses.finish, row, self._clock()))
        self._notifications.notify(lease.tenant, lease.response_id)
        return finished

    async def get_response(self, tenant: str, response_id: str) -> Response:
        rows = await self._select_of(tenant, responses.GET, response_id)
        if not rows or rows[0][0] != -1:
            raise response_not_found(response_id)
        return response_from(rows[0][1], [body for _, body in rows[1:]])

    async def list_responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        return await self._file.read(partial(lists.list_responses, tenant, query), tenant=tenant)

    async def search_responses(
        self, tenant: str, search: TextSearch, query: StorePageQuery
    ) -> FoundPage:
        return await self._file.read(
            partial(search_responses, tenant, search, query), tenant=tenant
        )

    async def list_input_items(
        self, tenant: str, response_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        work = (
            partial(read_context, tenant, response_id, False)
            if query is None
            else partial(read_input_page, tenant, response_id, query)
        )
        return await self._read_input(tenant, response_id, work)

    async def get_context(self, tenant: str, response_id: str) -> list[StoredItem]:
        work = partial(read_context, tenant, response_id, True)
        return await self._read_input(tenant, response_id, work)

    async def _read_input(
        self, tenant: str, response_id: str, work: Work[list[StoredItem] | None]
    ) -> list[StoredItem]:
        found = await self._file.read(work, tenant=tenant)
        if found is None:
            raise response_not_found(response_id)
        return found

    async def get_item(self, tenant: str, item_id: str) -> StoredItem:
        rows = await self._select_of(tenant, responses.ITEM, item_id)
        if not rows:
            raise NotFound(f"There is no item {item_id!r}.")
        return StoredItem(id=item_id, raw=Raw(rows[0][0]))

    async def delete_response(self, tenant: str, response_id: str) -> None:
        if not await self._file.erase(partial(responses.delete, tenant, response_id)):
            raise response_not_found(response_id)
        self._notifications.notify(tenant, response_id)

    async def get_storage_usage(self, tenant: str) -> StorageUsage:
        [(count, size, waiting)] = await self._select_of(tenant, USAGE)
        return StorageUsage(responses=count, bytes=size, waiting=waiting)

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        now = self._clock()
        await self._file.write(partial(runs.remove_dead_servers, self._uptime))
        await self._change(usage.REMOVE_ALL_EXPIRED, now)
        swept = 0
        while swept < limit:
            batch = min(SWEEP_BATCH, limit - swept)
            logs_before = now - keep_events_s
            if not await self._select(responses.IS_ANYTHING_EXPIRED, now, logs_before):
                break
            count = await self._file.erase(partial(responses.sweep, now, logs_before, batch))
            swept += count
            if count < batch:
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
        item_rows = responses.own_item_rows(tenant, conversation.id, 0, items)
        await self._file.write(partial(responses.create_conversation, row, item_rows))

    async def list_conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        work = partial(lists.list_conversations, tenant, query)
        return await self._file.read(work, tenant=tenant)

    async def get_conversation(self, tenant: str, conversation_id: str) -> Conversation:
        rows = await self._select_of(tenant, responses.GET_CONVERSATION, conversation_id)
        if not rows:
            raise conversation_not_found(conversation_id)
        created_at, metadata = rows[0]
        return Conversation(
            id=conversation_id, created_at=created_at, metadata=msgspec.json.decode(metadata)
        )

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        rows = await self._change(
            responses.UPDATE_CONVERSATION, tenant, conversation_id, msgspec.json.encode(metadata)
        )
        if not rows:
            raise conversation_not_found(conversation_id)
        return Conversation(id=conversation_id, created_at=rows[0][0], metadata=dict(metadata))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        await self._file.erase(partial(responses.delete_conversation, tenant, conversation_id))

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        work = partial(read_conversation, tenant, conversation_id, query)
        found = await self._file.read(work, tenant=tenant)
        if found is None:
            raise conversation_not_found(conversation_id)
        return found

    async def get_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> StoredItem:
        rows = await self._select_of(tenant, CONVERSATION_ITEM, conversation_id, item_id)
        if not rows:
            raise item_not_found(item_id, conversation_id)
        return StoredItem(id=item_id, raw=Raw(rows[0][0]))

    async def create_conversation_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        await self._file.write(
            partial(
                responses.create_conversation_items, tenant, conversation_id, items, self._uptime
            )
        )

    async def delete_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> None:
        await self._file.erase(
            partial(responses.delete_conversation_item, tenant, conversation_id, item_id)
        )

    async def claim_conversation(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        await self._file.write(
            partial(responses.claim, tenant, conversation_id, response_id, owner, self._uptime)
        )

    async def release_conversation(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        await self._file.write(
            partial(responses.release, tenant, conversation_id, response_id, items)
        )

    # --- runs -------------------------------------------------------------------------------------

    def record_heartbeat(self, owner: str, ttl_s: float) -> None:
        self._file.write_blocking(partial(runs.beat, owner, ttl_s, self._uptime))

    async def count_waiting_runs(self) -> int:
        [(count,)] = await self._select(runs.COUNT_WAITING)
        return int(count)

    async def end_heartbeat(self, owner: str) -> None:
        await self._change(runs.LEAVE, owner)

    async def lease_runs(
        self,
        owner: str,
        *,
        limit: int,
        waiting: bool = True,
        held: Mapping[str, int] = NO_RUNS,
        per_tenant: int | None = None,
    ) -> list[LeasedRun]:
        query = runs.LeaseQuery(owner, limit, waiting, held, per_tenant)
        # Read first: usually there is nothing to lease, and a read blocks no other process.
        find = partial(runs.find_runs, query, self._uptime)
        if limit < 1 or not await self._file.read(find):
            return []
        return await self._file.write(partial(runs.lease_runs, query, self._uptime))

    async def take_over_run(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        return await self._file.write(partial(runs.take_over, owner, tenant, response_id))

    async def give_back_run(self, lease: Lease) -> bool:
        return bool(await self._change(runs.GIVE_BACK, *runs.lease_row(lease)))

    async def list_leases(self, owner: str) -> list[Lease]:
        return [
            Lease(tenant=tenant, response_id=response_id, epoch=epoch)
            for tenant, response_id, epoch in await self._select(runs.HELD_LEASES, owner)
        ]

    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        is_written = await self._file.write(partial(runs.append, lease, events))
        self._notifications.notify(lease.tenant, lease.response_id)
        return is_written

    async def read_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        return await self._file.read(
            partial(runs.events, tenant, response_id, after, limit_bytes), tenant=tenant
        )

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        await self._notifications.wait(tenant, response_id, after, limit_s)

    # --- Idempotency-Keys -------------------------------------------------------------------------

    async def reserve_idempotency_key(
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
            return rows_of(db, GET_RESERVATION, (tenant, key))[0]

        holder, stored_fingerprint, exists = await self._file.write(work)
        return IdempotencyRecord(
            response_id=holder, fingerprint=stored_fingerprint, exists=bool(exists)
        )

    async def release_idempotency_key(self, tenant: str, key: str, response_id: str) -> None:
        await self._change(UNRESERVE, tenant, key, response_id)

    # --- webhooks ---------------------------------------------------------------------------------

    async def claim_due_deliveries(
        self, *, limit: int, claim_s: float, leave_out: Collection[str] = ()
    ) -> list[WebhookDelivery]:
        others = json.dumps([*leave_out])
        if not await self._select(IS_ANY_DELIVERY_DUE, self._clock(), others):
            return []
        rows = await self._file.write(partial(_claim_due, limit, claim_s, others, self._clock()))
        return [
            WebhookDelivery(id=row[0], tenant=row[1], endpoint=row[2], body=row[3], attempts=row[4])
            for row in rows
        ]

    async def delay_delivery(self, delivery_id: str, seconds: float) -> None:
        await self._change(DELAY_DELIVERY, self._clock() + seconds, delivery_id)

    async def delete_delivery(self, delivery_id: str) -> None:
        await self._change(REMOVE_DELIVERY, delivery_id)

    # --- API keys ---------------------------------------------------------------------------------

    async def create_api_key(self, key: ApiKey) -> None:
        row = (key.id, key.name, key.tenant, key.hash, key.created_at, policy_body(key.policy))
        await self._change(ADD_KEY, *row)

    async def list_api_keys(self) -> list[ApiKey]:
        return [api_key_from(row) for row in await self._select(LIST_KEYS)]

    async def get_api_key(self, hash: bytes) -> ApiKey | None:
        rows = await self._select(GET_KEY, hash)
        return api_key_from(rows[0]) if rows else None

    async def update_api_key(self, key_id: str, policy: KeyPolicy) -> bool:
        return bool(await self._change(UPDATE_KEY, policy_body(policy), key_id))

    async def revoke_api_key(self, key_id: str) -> bool:
        return bool(await self._change(REVOKE_KEY, key_id))

    # --- their use --------------------------------------------------------------------------------

    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        times = (self._clock(), self._uptime())
        return await self._file.write(partial(usage.reserve, key_id, charges, slot, *times))

    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        return await self._file.write(partial(usage.settle, key_id, tenant, response_id, charges))

    # --- traces -----------------------------------------------------------------------------------

    async def save_trace(self, lease: Lease, trace: bytes) -> bool:
        return await self._file.write(partial(traces.save, lease, trace))

    async def get_trace(self, tenant: str, response_id: str) -> bytes | None:
        rows = await self._select_of(tenant, traces.GET, response_id)
        if not rows:
            raise response_not_found(response_id)
        body: bytes | None = rows[0][0]
        return body

    # --- shared values ----------------------------------------------------------------------------

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        def work(db: apsw.Connection) -> bytes:
            db.execute(COMPARE_AND_SET, (name, value, expected))
            current: bytes = rows_of(db, GET_SHARED_VALUE, (name,))[0][0]
            return current

        return await self._file.write(work)

    # --- for all operations -----------------------------------------------------------------------

    async def _select(self, query: str, *values: Any) -> list[Row]:
        return await self._file.read(lambda db: rows_of(db, query, values))

    async def _select_of(self, tenant: str, query: str, *values: Any) -> list[Row]:
        """Return the rows of a tenant, whose reads wait for one of each other tenant at most."""
        return await self._file.read(
            lambda db: rows_of(db, query, (tenant, *values)), tenant=tenant
        )

    async def _change(self, query: str, *values: Any) -> list[Row]:
        return await self._file.write(lambda db: rows_of(db, query, values))

    async def _self_test(self) -> None:
        if not await round_trips(self):
            raise StoreError(f"The store {str(self._path)!r} does not return what was written.")


def _claim_due(
    limit: int, claim_s: float, leave_out: str, now: float, db: apsw.Connection
) -> list[Row]:
    rows = rows_of(db, DUE_DELIVERIES, (now, leave_out, limit))
    db.executemany(CLAIM_DELIVERY, [(now + claim_s, row[0]) for row in rows])
    return rows
