"""A store in a schema of a PostgreSQL database, for any number of servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Raw

from antiphon.adapters.stores.item_ranges import INPUT, OUTPUT
from antiphon.adapters.stores.not_found import (
    conversation_not_found,
    item_not_found,
    response_not_found,
)
from antiphon.adapters.stores.postgres import statements as sql
from antiphon.adapters.stores.postgres.appends import PostgresAppends
from antiphon.adapters.stores.postgres.heartbeat import PostgresHeartbeat
from antiphon.adapters.stores.postgres.items import PostgresItems
from antiphon.adapters.stores.postgres.lists import PostgresLists
from antiphon.adapters.stores.postgres.notifications import PostgresNotifications
from antiphon.adapters.stores.postgres.rows import (
    clamp_number,
    columns_of,
    columns_of_charges,
    conversation_of,
    item_rows,
    leased_run,
    missing_event_error,
    size_of,
)
from antiphon.adapters.stores.postgres.search import PostgresSearch
from antiphon.adapters.stores.postgres.server import (
    READ_IN_ORDER,
    Connection,
    PostgresServer,
    Row,
    columns,
)
from antiphon.adapters.stores.postgres.transactions import (
    add_own_items,
    delete_response,
    events_to_append,
    release_with_items,
    sweep_response,
    unavailable_error,
)
from antiphon.adapters.stores.self_test import round_trips
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
from antiphon.application.support.key_locks import KeyLocks
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import IdempotencyKeyInUse, NotFound, SettingsError, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.text_search import TextSearch

MAX_CHUNKS = 1000
"""The most chunks of a log that one statement reads."""


class PostgresStore(Store):
    """A store that several servers share; during an upgrade, they may run two versions.

    `schema` is created if it is missing. `pool` is the most connections for requests and runs; two
    more serve notifications and heartbeats. `start_timeout_s` limits operations at the start of a
    request, `run_timeout_s` all others.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "antiphon",
        pool: int = 10,
        start_timeout_s: float = 2.0,
        run_timeout_s: float = 10.0,
    ) -> None:
        self._server = PostgresServer(
            dsn,
            schema=schema,
            pool=pool,
            start_timeout_s=start_timeout_s,
            run_timeout_s=run_timeout_s,
            planner=READ_IN_ORDER,
        )
        self._channel = f"{schema}_news"
        self._appends = PostgresAppends(self._server, self._channel)
        self._notifications = PostgresNotifications(self._server, self._channel)
        self._heartbeat = PostgresHeartbeat(self._server)
        self._lists = PostgresLists(self._server)
        self._search = PostgresSearch(self._server, self._lists)
        self._items = PostgresItems(self._server)
        # Those that wait for a key's row would occupy all connections.
        self._key_locks = KeyLocks()

    async def start(self) -> None:
        await self._server.start()
        try:
            await self._self_test()
        except StoreError as error:
            await self.aclose()
            raise SettingsError(str(error)) from error
        await self._notifications.start()

    async def aclose(self) -> None:
        await self._appends.aclose()
        await self._notifications.aclose()
        await self._heartbeat.aclose()
        await self._server.aclose()

    async def check(self) -> None:
        # Writes the row of a server that is never alive.
        await self._server.fetch(
            sql.BEAT, "", 0.0, timeouts=self._server.start_timeouts, idempotent=True
        )

    async def _self_test(self) -> None:
        if not await round_trips(self):
            raise StoreError("The PostgreSQL store does not return what was written.")

    # --- responses --------------------------------------------------------------------------------

    async def create_response(self, tenant: str, stored: StoredResponse) -> None:
        response, run = stored.response, stored.run
        body = body_of(response)
        items = [*item_rows(INPUT, stored.input), *item_rows(OUTPUT, output_of(response))]
        events = run.events
        created = await self._server.fetch(
            sql.CREATE,
            tenant,
            response.id,
            response.previous_response_id,
            response.status,
            response.created_at,
            stored.expires_at,
            conversation_of(response),
            run.owner,
            *columns_of(events),
            len(body) + size_of(items),
            run.job,
            body,
            *columns(items, 4),
            run.key,
            timeouts=self._server.start_timeouts,
        )
        if not created:
            raise IdempotencyKeyInUse

    async def finish_response(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        work = partial(self._finish, lease, response, events, deliveries)
        return await self._server.in_transaction(work, timeouts=self._server.run_timeouts)

    async def _finish(
        self,
        lease: Lease,
        response: Response,
        events: EventChunk | None,
        deliveries: Sequence[WebhookDelivery],
        db: Connection,
    ) -> bool:
        tenant, response_id = lease.tenant, lease.response_id
        body, output = body_of(response), item_rows(OUTPUT, output_of(response))
        size = len(body) + size_of(output) + (len(events.body) if events else 0)
        finished = await db.fetchrow(
            sql.FINISH,
            *(tenant, response_id, lease.epoch, response.status, body),
            events.first + events.count if events else None,
            size,
        )
        if finished is None:
            return False
        number, next_number = finished
        missing = await events_to_append(db, number, next_number, events)
        rows = [(d.id, d.tenant, d.endpoint, d.body, d.attempts) for d in deliveries]
        await db.execute(
            sql.ADD_OUTPUT,
            tenant,
            number,
            *columns_of(missing),
            *columns(rows, 5),
            *columns(output, 4),
            None if next_number is None else self._channel,
            response_id,
        )
        await release_with_items(db, tenant, number, response)
        return True

    async def get_response(self, tenant: str, response_id: str) -> Response:
        rows = await self._server.fetch(sql.GET, tenant, response_id, idempotent=True)
        if not rows:
            raise response_not_found(response_id)
        return response_from(rows[0][0], [item for _, item in rows if item is not None])

    async def list_responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        return await self._lists.responses(tenant, query)

    async def search_responses(
        self, tenant: str, search: TextSearch, query: StorePageQuery
    ) -> FoundPage:
        return await self._search.responses(tenant, search, query)

    async def list_input_items(
        self, tenant: str, response_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        if query is None:
            return await self._items.context(tenant, response_id, with_output=False)
        return await self._items.input_page(tenant, response_id, query)

    async def get_context(self, tenant: str, response_id: str) -> list[StoredItem]:
        return await self._items.context(tenant, response_id, with_output=True)

    async def get_item(self, tenant: str, item_id: str) -> StoredItem:
        rows = await self._server.fetch(sql.ITEM, tenant, item_id, idempotent=True)
        if not rows:
            raise NotFound(f"There is no item {item_id!r}.")
        return StoredItem(id=item_id, raw=Raw(rows[0][0]))

    async def delete_response(self, tenant: str, response_id: str) -> None:
        work = partial(delete_response, tenant, response_id, self._channel)
        if not await self._server.in_transaction(work):
            raise response_not_found(response_id)

    async def get_storage_usage(self, tenant: str) -> StorageUsage:
        [(count, size, waiting)] = await self._server.fetch(sql.USAGE, tenant, idempotent=True)
        return StorageUsage(responses=count, bytes=size, waiting=waiting)

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        swept = 0
        for tenant, response_id in await self._server.fetch(sql.EXPIRED_RESPONSES, limit):
            work = partial(sweep_response, tenant, response_id, self._channel)
            swept += await self._server.in_transaction(work)
        for query, *values in ((sql.SWEEP_LOGS, float(keep_events_s)), (sql.SWEEP_RESERVATIONS,)):
            if swept < limit:
                swept += len(await self._server.fetch(query, *values, limit - swept))
        await self._server.fetch(sql.SWEEP_SERVERS)
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

        async def work(db: Connection) -> None:
            number = await db.fetchval(sql.CREATE_CONVERSATION, *row)
            await add_own_items(db, tenant, number, 0, items)

        await self._server.in_transaction(work, timeouts=self._server.start_timeouts)

    async def list_conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        return await self._lists.conversations(tenant, query)

    async def get_conversation(self, tenant: str, conversation_id: str) -> Conversation:
        rows = await self._server.fetch(
            sql.GET_CONVERSATION, tenant, conversation_id, idempotent=True
        )
        if not rows:
            raise conversation_not_found(conversation_id)
        created_at, metadata = rows[0]
        return Conversation(
            id=conversation_id, created_at=created_at, metadata=msgspec.json.decode(metadata)
        )

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        rows = await self._server.fetch(
            sql.UPDATE_CONVERSATION, tenant, conversation_id, msgspec.json.encode(metadata)
        )
        if not rows:
            raise conversation_not_found(conversation_id)
        return Conversation(id=conversation_id, created_at=rows[0][0], metadata=dict(metadata))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        async def work(db: Connection) -> None:
            number = await db.fetchval(sql.DELETE_CONVERSATION, tenant, conversation_id)
            if number is None:
                raise conversation_not_found(conversation_id)
            await db.fetch(sql.REMOVE_FROM_CONVERSATION, number, None)

        await self._server.in_transaction(work)

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        return await self._items.of_conversation(tenant, conversation_id, query)

    async def get_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> StoredItem:
        return await self._items.in_conversation(tenant, conversation_id, item_id)

    async def create_conversation_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        async def work(db: Connection) -> None:
            places = await db.fetchrow(sql.RESERVE_PLACES, tenant, conversation_id, len(items))
            if places is None:
                raise await unavailable_error(db, tenant, conversation_id)
            number, first = places
            await add_own_items(db, tenant, number, first, items)

        await self._server.in_transaction(work, timeouts=self._server.start_timeouts)

    async def delete_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> None:
        async def work(db: Connection) -> None:
            number = await db.fetchval(sql.GET_AND_LOCK_CONVERSATION, tenant, conversation_id)
            if number is None:
                raise conversation_not_found(conversation_id)
            if not await db.fetch(sql.REMOVE_FROM_CONVERSATION, number, item_id):
                raise item_not_found(item_id, conversation_id)

        await self._server.in_transaction(work)

    async def claim_conversation(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        async def work(db: Connection) -> None:
            if not await db.fetch(sql.CLAIM, tenant, conversation_id, response_id, owner):
                raise await unavailable_error(db, tenant, conversation_id)

        await self._server.in_transaction(work, timeouts=self._server.start_timeouts)

    async def release_conversation(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        async def work(db: Connection) -> None:
            places = await db.fetchrow(
                sql.RELEASE, tenant, conversation_id, response_id, len(items)
            )
            if places is not None:
                number, first = places
                await add_own_items(db, tenant, number, first, items)

        await self._server.in_transaction(work, timeouts=self._server.run_timeouts)

    # --- runs -------------------------------------------------------------------------------------

    def record_heartbeat(self, owner: str, ttl_s: float) -> None:
        self._heartbeat.beat(owner, ttl_s)

    async def count_waiting_runs(self) -> int:
        [(count,)] = await self._server.fetch(sql.COUNT_WAITING, idempotent=True)
        return int(count)

    async def end_heartbeat(self, owner: str) -> None:
        await self._server.fetch(sql.LEAVE, owner, idempotent=True)

    async def lease_runs(
        self,
        owner: str,
        *,
        limit: int,
        waiting: bool = True,
        held: Mapping[str, int] = NO_RUNS,
        per_tenant: int | None = None,
    ) -> list[LeasedRun]:
        rows = await self._server.fetch(
            sql.LEASE_RUNS, owner, limit, waiting, list(held), list(held.values()), per_tenant
        )
        return [leased_run(row) for row in rows]

    async def take_over_run(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        rows = await self._server.fetch(sql.TAKE_OVER, owner, tenant, response_id)
        if rows:
            return leased_run(rows[0])
        if not await self._server.fetch(sql.RESPONSE_EXISTS, tenant, response_id, idempotent=True):
            raise response_not_found(response_id)
        return None

    async def give_back_run(self, lease: Lease) -> bool:
        values = (lease.tenant, lease.response_id, lease.epoch)
        return bool(await self._server.fetch(sql.GIVE_BACK, *values, idempotent=True))

    async def list_leases(self, owner: str) -> list[Lease]:
        return [
            Lease(tenant=tenant, response_id=response_id, epoch=epoch)
            for tenant, response_id, epoch in await self._server.fetch(
                sql.HELD_LEASES, owner, idempotent=True
            )
        ]

    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        return await self._appends.append(lease, events)

    async def read_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        next_number = clamp_number(after) + 1
        values = (tenant, response_id, next_number, MAX_CHUNKS, limit_bytes)
        rows = await self._server.fetch(sql.EVENTS, *values, idempotent=True)
        if not rows:
            raise NotFound(f"There are no events of response {response_id!r}.")
        is_over, count, *_ = rows[0]
        chunks = [
            EventChunk(first=first, count=count, body=body)
            for _, _, first, count, body in rows
            if body is not None
        ]
        for chunk in chunks:
            if chunk.first > next_number:
                raise missing_event_error(response_id, next_number)
            next_number = chunk.first + chunk.count
        if is_over and not chunks and next_number < count:
            raise missing_event_error(response_id, next_number)
        return LogSlice(chunks=chunks, ends=is_over and next_number >= count)

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        await self._notifications.wait(
            tenant, response_id, after=clamp_number(after), limit_s=limit_s
        )

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
        async def work(db: Connection) -> Row:
            while True:
                row = (tenant, key, response_id, fingerprint, owner, float(expires_at))
                if not await db.fetchval(sql.RESERVE_NEW, *row):
                    await db.execute(sql.LOCK_RESERVATION, tenant, key)
                    await db.execute(sql.RESERVE, *row)
                reservation: Row | None = await db.fetchrow(sql.GET_RESERVATION, tenant, key)
                if reservation is not None:  # otherwise it was freed in the meantime
                    return reservation

        holder, stored_fingerprint, exists = await self._server.in_transaction(
            work, timeouts=self._server.start_timeouts
        )
        return IdempotencyRecord(response_id=holder, fingerprint=stored_fingerprint, exists=exists)

    async def release_idempotency_key(self, tenant: str, key: str, response_id: str) -> None:
        await self._server.fetch(
            sql.UNRESERVE,
            tenant,
            key,
            response_id,
            timeouts=self._server.run_timeouts,
            idempotent=True,
        )

    # --- webhooks ---------------------------------------------------------------------------------

    async def claim_due_deliveries(
        self, *, limit: int, claim_s: float, leave_out: Collection[str] = ()
    ) -> list[WebhookDelivery]:
        return [
            WebhookDelivery(id=id_, tenant=tenant, endpoint=endpoint, body=body, attempts=attempts)
            for id_, tenant, endpoint, body, attempts in await self._server.fetch(
                sql.CLAIM_DUE, limit, float(claim_s), [*leave_out]
            )
        ]

    async def delay_delivery(self, delivery_id: str, seconds: float) -> None:
        await self._server.fetch(sql.DELAY_DELIVERY, delivery_id, float(seconds), idempotent=True)

    async def delete_delivery(self, delivery_id: str) -> None:
        await self._server.fetch(sql.REMOVE_DELIVERY, delivery_id, idempotent=True)

    # --- API keys ---------------------------------------------------------------------------------

    async def create_api_key(self, key: ApiKey) -> None:
        row = (key.id, key.name, key.tenant, key.hash, key.created_at, policy_body(key.policy))
        await self._server.fetch(sql.ADD_KEY, *row)

    async def list_api_keys(self) -> list[ApiKey]:
        return [*map(api_key_from, await self._server.fetch(sql.LIST_KEYS, idempotent=True))]

    async def get_api_key(self, hash: bytes) -> ApiKey | None:
        rows = await self._server.fetch(
            sql.GET_KEY, hash, timeouts=self._server.start_timeouts, idempotent=True
        )
        return api_key_from(rows[0]) if rows else None

    async def update_api_key(self, key_id: str, policy: KeyPolicy) -> bool:
        return bool(await self._server.fetch(sql.UPDATE_KEY, key_id, policy_body(policy)))

    async def revoke_api_key(self, key_id: str) -> bool:
        return bool(await self._server.fetch(sql.REVOKE_KEY, key_id))

    # --- their use --------------------------------------------------------------------------------

    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        place = (slot.tenant, slot.response_id, slot.owner, slot.limit) if slot else (None,) * 4
        async with self._key_locks.of(key_id):
            [(accepted, counts, runs)] = await self._server.fetch(
                sql.RESERVE_USAGE,
                key_id,
                *columns_of_charges(charges),
                *place,
                timeouts=self._server.start_timeouts,
            )
        return KeyUsage(accepted=accepted, counts=counts, runs=runs)

    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        names, starts, amounts, expiries, _ = columns_of_charges(charges)
        values = (key_id, tenant, response_id, names, starts, amounts, expiries)
        [(is_settled,)] = await self._server.fetch(
            sql.SETTLE_USAGE, *values, timeouts=self._server.run_timeouts
        )
        return bool(is_settled)

    # --- traces -----------------------------------------------------------------------------------

    async def save_trace(self, lease: Lease, trace: bytes) -> bool:
        values = (lease.tenant, lease.response_id, lease.epoch, trace)
        timeouts = self._server.run_timeouts
        return bool(await self._server.fetch(sql.SAVE_TRACE, *values, timeouts=timeouts))

    async def get_trace(self, tenant: str, response_id: str) -> bytes | None:
        rows = await self._server.fetch(sql.GET_TRACE, tenant, response_id, idempotent=True)
        if not rows:
            raise response_not_found(response_id)
        body: bytes | None = rows[0][0]
        return body

    # --- shared values ----------------------------------------------------------------------------

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        async def work(db: Connection) -> bytes:
            await db.execute(sql.COMPARE_AND_SET, name, value, expected)
            # A separate statement: the first may have waited for a transaction that wrote it.
            current: bytes = await db.fetchval(sql.GET_SHARED_VALUE, name)
            return current

        return await self._server.in_transaction(work)
