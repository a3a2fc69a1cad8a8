"""All that is kept, in a schema of a PostgreSQL database, for any number of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from msgspec import Raw

from antiphon.adapters.stores import postgres_statements as sql
from antiphon.adapters.stores.postgres_appends import PostgresAppends, out_of_order_error
from antiphon.adapters.stores.postgres_heartbeat import PostgresHeartbeat
from antiphon.adapters.stores.postgres_notifications import PostgresNotifications
from antiphon.adapters.stores.postgres_server import Connection, PostgresServer, Row, columns
from antiphon.adapters.stores.self_test import round_trips
from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
from antiphon.application.ports import (
    LOG_READ_BYTES,
    ApiKey,
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
from antiphon.domain.errors import (
    ConversationLocked,
    IdempotencyKeyInUse,
    NotFound,
    RequestError,
    SettingsError,
    StoreError,
)
from antiphon.domain.response import Response

INPUT, OUTPUT = 0, 1

FAR_AHEAD = 2**62
"""No event has this number."""

CHUNKS_AT_ONCE = 1000
"""Of a log, in one answer."""


class PostgresStore(Store):
    """`schema` is made if it is missing; several servers share it, of two versions for a while.

    `pool`: connections for requests and runs, at most; two more listen and beat. `start_s` limits
    what a request may wait before anything is begun for it, `middle_s` any other operation.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "antiphon",
        pool: int = 10,
        start_s: float = 2.0,
        middle_s: float = 10.0,
    ) -> None:
        self._server = PostgresServer(
            dsn, schema=schema, pool=pool, start_s=start_s, middle_s=middle_s
        )
        self._channel = f"{schema}_news"
        self._appends = PostgresAppends(self._server, self._channel)
        self._news = PostgresNotifications(self._server, self._channel)
        self._heart = PostgresHeartbeat(self._server)

    async def start(self) -> None:
        await self._server.start()
        try:
            await self._prove()
        except StoreError as error:
            await self.aclose()
            raise SettingsError(str(error)) from error
        await self._news.start()

    async def aclose(self) -> None:
        await self._appends.aclose()
        await self._news.aclose()
        await self._heart.aclose()
        await self._server.aclose()

    async def check(self) -> None:
        # Removes nothing; a database that can only be read refuses it all the same.
        await self._server.fetch(sql.LEAVE, "", limits=self._server.first, again=True)

    async def _prove(self) -> None:
        if not await round_trips(self):
            raise StoreError("The store PostgreSQL does not return what was written.")

    # --- responses --------------------------------------------------------------------------------

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        response, run = stored.response, stored.run
        body = body_of(response)
        items = [*_rows(INPUT, stored.input), *_rows(OUTPUT, output_of(response))]
        events = run.events
        created = await self._server.fetch(
            sql.CREATE,
            tenant,
            response.id,
            response.previous_response_id,
            response.status,
            response.created_at,
            stored.expires_at,
            _conversation_of(response),
            run.owner,
            *(_columns_of(events)),
            len(body) + _size(items),
            run.job,
            body,
            *columns(items, 4),
            run.key,
            limits=self._server.first,
        )
        if not created:
            raise IdempotencyKeyInUse

    async def finish(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        work = partial(self._finish, lease, response, events, deliveries)
        return await self._server.in_transaction(work, limits=self._server.middle)

    async def _finish(
        self,
        lease: Lease,
        response: Response,
        events: EventChunk | None,
        deliveries: Sequence[WebhookDelivery],
        db: Connection,
    ) -> bool:
        tenant, response_id = lease.tenant, lease.response_id
        body, output = body_of(response), _rows(OUTPUT, output_of(response))
        size = len(body) + _size(output) + (len(events.body) if events else 0)
        finished = await db.fetchrow(
            sql.FINISH,
            *(tenant, response_id, lease.epoch, response.status, body),
            events.first + events.count if events else None,
            size,
        )
        if finished is None:
            return False
        number, following = finished
        last = await _last_of_log(db, number, following, events)
        rows = [(one.id, one.tenant, one.endpoint, one.body, one.attempts) for one in deliveries]
        await db.execute(
            sql.ADD_OUTPUT,
            tenant,
            number,
            *_columns_of(last),
            *columns(rows, 5),
            *columns(output, 4),
            None if following is None else self._channel,
            response_id,
        )
        await _hand_over(db, tenant, number, response)
        return True

    async def get(self, tenant: str, response_id: str) -> Response:
        rows = await self._server.fetch(sql.GET, tenant, response_id, again=True)
        if not rows:
            raise _no_response(response_id)
        return response_from(rows[0][0], [item for _, item in rows if item is not None])

    async def input_items(self, tenant: str, response_id: str) -> list[StoredItem]:
        return await self._context(tenant, response_id, with_output=False)

    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        return await self._context(tenant, response_id, with_output=True)

    async def _context(
        self, tenant: str, response_id: str, *, with_output: bool
    ) -> list[StoredItem]:
        rows = await self._server.fetch(sql.CONTEXT, tenant, response_id, with_output, again=True)
        if not rows:
            raise _no_response(response_id)
        return _stored(rows)

    async def item(self, tenant: str, item_id: str) -> StoredItem:
        rows = await self._server.fetch(sql.ITEM, tenant, item_id, again=True)
        if not rows:
            raise NotFound(f"There is no item {item_id!r}.")
        return StoredItem(id=item_id, raw=Raw(rows[0][0]))

    async def delete(self, tenant: str, response_id: str) -> None:
        work = partial(_delete, tenant, response_id, self._channel)
        if not await self._server.in_transaction(work):
            raise _no_response(response_id)

    async def usage(self, tenant: str) -> StorageUsage:
        [(responses, size, waiting)] = await self._server.fetch(sql.USAGE, tenant, again=True)
        return StorageUsage(responses=responses, bytes=size, waiting=waiting)

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        swept = 0
        for tenant, response_id in await self._server.fetch(sql.EXPIRED, limit):
            work = partial(_sweep, tenant, response_id, self._channel)
            swept += await self._server.in_transaction(work)
        for query, *values in ((sql.SWEEP_LOGS, float(keep_events_s)), (sql.SWEEP_REPEATS,)):
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
            await _add(db, tenant, number, 0, items)

        await self._server.in_transaction(work, limits=self._server.first)

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        rows = await self._server.fetch(sql.GET_CONVERSATION, tenant, conversation_id, again=True)
        if not rows:
            raise _no_conversation(conversation_id)
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
            raise _no_conversation(conversation_id)
        return Conversation(id=conversation_id, created_at=rows[0][0], metadata=dict(metadata))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        async def work(db: Connection) -> None:
            number = await db.fetchval(sql.DELETE_CONVERSATION, tenant, conversation_id)
            if number is None:
                raise _no_conversation(conversation_id)
            await db.fetch(sql.REMOVE_FROM_CONVERSATION, number, None)

        await self._server.in_transaction(work)

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[StoredItem]:
        rows = await self._server.fetch(sql.CONVERSATION_ITEMS, tenant, conversation_id, again=True)
        if not rows:
            raise _no_conversation(conversation_id)
        return _stored(rows)

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        async def work(db: Connection) -> None:
            room = await db.fetchrow(sql.MAKE_ROOM, tenant, conversation_id, len(items))
            if room is None:
                raise await _not_free(db, tenant, conversation_id)
            await _add(db, tenant, room[0], room[1], items)

        await self._server.in_transaction(work, limits=self._server.first)

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        async def work(db: Connection) -> None:
            number = await db.fetchval(sql.NUMBER_OF_CONVERSATION, tenant, conversation_id)
            if number is None:
                raise _no_conversation(conversation_id)
            if not await db.fetch(sql.REMOVE_FROM_CONVERSATION, number, item_id):
                raise NotFound(f"There is no item {item_id!r} in conversation {conversation_id!r}.")

        await self._server.in_transaction(work)

    async def claim(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        async def work(db: Connection) -> None:
            if not await db.fetch(sql.CLAIM, tenant, conversation_id, response_id, owner):
                raise await _not_free(db, tenant, conversation_id)

        await self._server.in_transaction(work, limits=self._server.first)

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        async def work(db: Connection) -> None:
            room = await db.fetchrow(sql.RELEASE, tenant, conversation_id, response_id, len(items))
            if room is not None:
                await _add(db, tenant, room[0], room[1], items)

        await self._server.in_transaction(work, limits=self._server.middle)

    # --- runs -------------------------------------------------------------------------------------

    def beat(self, owner: str, ttl_s: float) -> None:
        self._heart.beat(owner, ttl_s)

    async def leave(self, owner: str) -> None:
        await self._server.fetch(sql.LEAVE, owner, again=True)

    async def lease_runs(self, owner: str, *, limit: int, waiting: bool = True) -> list[LeasedRun]:
        rows = await self._server.fetch(sql.TAKE, owner, limit, waiting)
        return [_taken(row) for row in rows]

    async def take_over(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        rows = await self._server.fetch(sql.TAKE_OVER, owner, tenant, response_id)
        if rows:
            return _taken(rows[0])
        if not await self._server.fetch(sql.IS_THERE, tenant, response_id, again=True):
            raise _no_response(response_id)
        return None

    async def give_back(self, lease: Lease) -> bool:
        which = (lease.tenant, lease.response_id, lease.epoch)
        return bool(await self._server.fetch(sql.GIVE_BACK, *which, again=True))

    async def held_leases(self, owner: str) -> list[Lease]:
        return [
            Lease(tenant=tenant, response_id=response_id, epoch=epoch)
            for tenant, response_id, epoch in await self._server.fetch(sql.HELD, owner, again=True)
        ]

    async def append(self, lease: Lease, events: EventChunk) -> bool:
        return await self._appends.append(lease, events)

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        following = _number(after) + 1
        which = (tenant, response_id, following)
        rows = await self._server.fetch(sql.EVENTS, *which, CHUNKS_AT_ONCE, limit_bytes, again=True)
        if not rows:
            raise NotFound(f"There are no events of response {response_id!r}.")
        over, count, *_ = rows[0]
        chunks = [
            EventChunk(first=first, count=count, body=body)
            for _, _, first, count, body in rows
            if body is not None
        ]
        for chunk in chunks:
            if chunk.first > following:
                raise _gap(response_id, following)
            following = chunk.first + chunk.count
        if over and not chunks and following < count:
            raise _gap(response_id, following)
        return LogSlice(chunks=chunks, ends=over and following >= count)

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        await self._news.wait(tenant, response_id, after=_number(after), limit_s=limit_s)

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
        async def work(db: Connection) -> Row:
            while True:
                row = (tenant, key, response_id, fingerprint, owner, float(expires_at))
                if not await db.fetchval(sql.RESERVE_NEW, *row):
                    await db.execute(sql.LOCK_REPEAT, tenant, key)
                    await db.execute(sql.RESERVE, *row)
                found: Row | None = await db.fetchrow(sql.RESERVED, tenant, key)
                if found is not None:  # else it was freed in between
                    return found

        holder, print_of_it, exists = await self._server.in_transaction(
            work, limits=self._server.first
        )
        return IdempotencyRecord(response_id=holder, fingerprint=print_of_it, exists=exists)

    async def unreserve(self, tenant: str, key: str, response_id: str) -> None:
        await self._server.fetch(
            sql.UNRESERVE, tenant, key, response_id, limits=self._server.middle, again=True
        )

    # --- webhooks ---------------------------------------------------------------------------------

    async def claim_due(self, *, limit: int, claim_s: float) -> list[WebhookDelivery]:
        return [
            WebhookDelivery(id=id_, tenant=tenant, endpoint=endpoint, body=body, attempts=attempts)
            for id_, tenant, endpoint, body, attempts in await self._server.fetch(
                sql.DUE, limit, float(claim_s)
            )
        ]

    async def delay(self, delivery_id: str, seconds: float) -> None:
        await self._server.fetch(sql.DELAY, delivery_id, float(seconds), again=True)

    async def remove(self, delivery_id: str) -> None:
        await self._server.fetch(sql.REMOVE_NOTICE, delivery_id, again=True)

    # --- API keys ---------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey) -> None:
        row = (key.id, key.name, key.tenant, key.hash, key.created_at)
        await self._server.fetch(sql.ADD_KEY, *row)

    async def keys(self) -> list[ApiKey]:
        return [_api_key(row) for row in await self._server.fetch(sql.KEYS, again=True)]

    async def key(self, hash: bytes) -> ApiKey | None:
        rows = await self._server.fetch(sql.KEY, hash, limits=self._server.first, again=True)
        return _api_key(rows[0]) if rows else None

    async def revoke_key(self, key_id: str) -> bool:
        return bool(await self._server.fetch(sql.REVOKE_KEY, key_id))

    # --- agreements -------------------------------------------------------------------------------

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        async def work(db: Connection) -> bytes:
            await db.execute(sql.AGREE, name, value, expected)
            # A statement of its own: the first may have waited for another that wrote it.
            kept: bytes = await db.fetchval(sql.AGREED, name)
            return kept

        return await self._server.in_transaction(work)


# --- parts of transactions ------------------------------------------------------------------------


async def _last_of_log(
    db: Connection, number: int, following: int | None, events: EventChunk | None
) -> EventChunk | None:
    """Return the events if they are not in the log yet. Raises: StoreError if they do not fit."""
    if events is None or events.first == following:
        return events
    if not await db.fetch(sql.HAS_CHUNK, number, events.first, events.count):
        raise out_of_order_error(events, following)
    return None


async def _hand_over(db: Connection, tenant: str, number: int, response: Response) -> None:
    """Free the response's conversation, with what the response brought at its end."""
    conversation_id = _conversation_of(response)
    if conversation_id is None:
        return
    count = await db.fetchval(sql.COUNT_BROUGHT, number) if response.keeps_items else 0
    room = await db.fetchrow(sql.RELEASE, tenant, conversation_id, response.id, count)
    if room is not None and count:
        await db.execute(sql.SHARE, number, *room)


async def _delete(tenant: str, response_id: str, channel: str, db: Connection) -> bool:
    await db.execute(sql.DROP_RUN, tenant, response_id)
    number = await db.fetchval(sql.EMPTY, tenant, response_id)
    if number is None:
        return False
    await db.execute(sql.FORGET, tenant, response_id, number, channel)
    # Items go once no response continues the one that brought them; so may those before it.
    while number is not None:
        conversation, is_deleted = await db.fetchrow(sql.LOCK, number) or (None, False)
        if not is_deleted:
            break
        await db.execute(sql.LOCK_CONVERSATION, conversation)
        unneeded, number = number, None
        for (parent,) in await db.fetch(sql.PURGE, unneeded):
            await db.execute(sql.REMOVE_ITEMS, unneeded)
            number = parent
    return True


async def _sweep(tenant: str, response_id: str, channel: str, db: Connection) -> bool:
    await db.execute(sql.NEED_NOT_LAST)
    return await _delete(tenant, response_id, channel, db)


async def _add(
    db: Connection, tenant: str, conversation: int, first: int, items: Sequence[StoredItem]
) -> None:
    if items:
        rows = [(item.id or None, bytes(item.raw)) for item in items]
        await db.execute(sql.ADD_OWN, tenant, conversation, first, *columns(rows, 2))


async def _not_free(db: Connection, tenant: str, conversation_id: str) -> RequestError:
    there = await db.fetchrow(sql.GET_CONVERSATION, tenant, conversation_id)
    return ConversationLocked() if there else _no_conversation(conversation_id)


# --- rows -----------------------------------------------------------------------------------------


def _rows(kind: int, items: Sequence[StoredItem]) -> list[Row]:
    return [
        (kind, position, item.id or None, bytes(item.raw)) for position, item in enumerate(items)
    ]


def _columns_of(events: EventChunk | None) -> tuple[int | None, int | None, bytes | None]:
    if events is None:
        return None, None, None
    return events.first, events.count, events.body


def _number(after: int) -> int:
    """Return the number of an event that a client named, as far as PostgreSQL has it."""
    return min(max(after, -1), FAR_AHEAD)


def _size(items: Sequence[Row]) -> int:
    return sum(len(item[-1]) for item in items)


def _conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None


def _stored(rows: Sequence[Row]) -> list[StoredItem]:
    return [StoredItem(id=item_id or "", raw=Raw(body)) for item_id, body in rows if body]


def _taken(row: Row) -> LeasedRun:
    tenant, response_id, epoch, job, body, output = row
    lease = Lease(tenant=tenant, response_id=response_id, epoch=epoch)
    return LeasedRun(lease=lease, response=response_from(body, output), job=job)


def _api_key(row: Row) -> ApiKey:
    key_id, name, tenant, hashed, created_at = row
    return ApiKey(id=key_id, name=name, tenant=tenant, hash=hashed, created_at=created_at)


def _no_response(response_id: str) -> NotFound:
    return NotFound(f"There is no response {response_id!r}.")


def _no_conversation(conversation_id: str) -> NotFound:
    return NotFound(f"There is no conversation {conversation_id!r}.")


def _gap(response_id: str, number: int) -> StoreError:
    return StoreError(f"The log of response {response_id!r} is damaged: event {number} is missing.")
