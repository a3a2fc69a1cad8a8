"""A store in one Redis, for any number of servers.

Every change is one atomic script (lua/*.lua). Redis may have replicas but must not be a cluster,
because a script touches keys that a cluster would keep on different nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw

from antiphon.adapters.extras import install_command
from antiphon.adapters.stores.not_found import conversation_not_found, response_not_found
from antiphon.adapters.stores.self_test import round_trips
from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
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
    NewRun,
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
from antiphon.domain.errors import (
    ConversationLocked,
    IdempotencyKeyInUse,
    NotFound,
    SettingsError,
    StoreError,
)
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.text_search import TextSearch

try:
    from antiphon.adapters.stores.redis.deliveries import RedisDeliveries
    from antiphon.adapters.stores.redis.durability import UNKNOWN, durability_of, warn_of
    from antiphon.adapters.stores.redis.items import RedisItems, to_items, to_ref
    from antiphon.adapters.stores.redis.lists import RedisLists
    from antiphon.adapters.stores.redis.notifications import RedisNotifications
    from antiphon.adapters.stores.redis.schema import upgrade
    from antiphon.adapters.stores.redis.scripts import RedisScripts
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"The Redis store needs redis. Install it with: {install_command('redis')}"
    ) from missing

ANY_NUMBER = 2**31
"""More runs than a tenant can hold."""

ROOM = b"\0" * 65_536
"""The free memory without which the store counts as full."""

SWEEP_BATCH = 100
"""The most that one script sweeps, because Redis serves no other client meanwhile."""

_encode_key = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(ApiKey).decode


class RedisStore(Store):
    """A store under the keys with `prefix`. Stores with different prefixes may share a Redis.

    The clock of Redis decides which owners are alive. See RedisScripts for `connections`,
    `connect_timeout_s` and `timeout_s`.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "antiphon:",
        connections: int = 16,
        connect_timeout_s: float = 2.0,
        timeout_s: float = 10.0,
    ) -> None:
        self._redis = RedisScripts(
            url,
            prefix=prefix,
            connections=connections,
            connect_timeout_s=connect_timeout_s,
            timeout_s=timeout_s,
        )
        self._lists = RedisLists(self._redis)
        self._items = RedisItems(self._redis)
        self._deliveries = RedisDeliveries(self._redis)
        self._key_locks = KeyLocks()  # so that one key does not occupy all connections
        self._notifications = RedisNotifications(self._redis.connection)
        self._durability = UNKNOWN

    @property
    def durability(self) -> str:
        """One sentence on what Redis may lose, known once the store has started."""
        return self._durability

    async def start(self) -> None:
        await self._redis.start()
        try:
            with self._redis.raising_store_errors():
                self._durability = await durability_of(self._redis.client, self._redis.address)
            warn_of(self._durability)
            await upgrade(self._redis)
            await self._self_test()
        except StoreError as error:
            await self.aclose()
            raise SettingsError(str(error)) from error
        except SettingsError:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._notifications.aclose()
        await self._redis.aclose()

    async def check(self) -> None:
        # Redis runs it as it runs what creates a response: not without room for one.
        await self._redis.run("check", padding=ROOM)

    # --- responses --------------------------------------------------------------------------------

    async def create_response(self, tenant: str, stored: StoredResponse) -> None:
        response, run = stored.response, stored.run
        [outcome] = await self._redis.run(
            "create",
            ref=to_ref(tenant, response.id),
            status=response.status,
            body=body_of(response),
            parent=response.previous_response_id,
            conversation=_conversation_of(response),
            input=_pack_items(stored.input),
            output=_pack_items(output_of(response)),
            expires_at=stored.expires_at,
            key=None if run.key is None else to_ref(tenant, run.key),
            **_run_arguments(run),
        )
        if outcome == b"no key":
            raise IdempotencyKeyInUse
        if outcome != b"ok":
            raise StoreError(f"Response {response.id!r} already exists.")

    async def finish_response(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        [outcome] = await self._redis.run(
            "finish",
            **_lease_arguments(lease),
            status=response.status,
            body=body_of(response),
            output=_pack_items(output_of(response)),
            leaves_items=response.keeps_items,
            events=_pack_chunk(events),
            deliveries=[msgspec.structs.asdict(delivery) for delivery in deliveries],
        )
        return _is_written(outcome, lease)

    async def get_response(self, tenant: str, response_id: str) -> Response:
        outcome, *rest = await self._redis.run("get", ref=to_ref(tenant, response_id))
        if outcome != b"ok":
            raise response_not_found(response_id)
        return _to_response(*rest[0])

    async def list_responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        return await self._lists.responses(tenant, query)

    async def search_responses(
        self, tenant: str, search: TextSearch, query: StorePageQuery
    ) -> FoundPage:
        return await self._lists.search(tenant, search, query)

    async def list_input_items(
        self, tenant: str, response_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        return await self._items.of_response(tenant, response_id, query, with_output=False)

    async def get_context(self, tenant: str, response_id: str) -> list[StoredItem]:
        return await self._items.of_response(tenant, response_id, with_output=True)

    async def get_item(self, tenant: str, item_id: str) -> StoredItem:
        outcome, *rest = await self._redis.run("read_item", ref=to_ref(tenant, item_id))
        if outcome != b"ok":
            raise NotFound(f"There is no item {item_id!r}.")
        return StoredItem(id=item_id, raw=Raw(rest[0]))

    async def delete_response(self, tenant: str, response_id: str) -> None:
        [outcome] = await self._redis.run("delete", ref=to_ref(tenant, response_id))
        if outcome != b"ok":
            raise response_not_found(response_id)

    async def get_storage_usage(self, tenant: str) -> StorageUsage:
        counts = await self._redis.run("storage_usage", tenant=quote(tenant, safe=""))
        responses, size, waiting = (int(count or 0) for count in counts)
        return StorageUsage(responses=responses, bytes=size, waiting=waiting)

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        swept = 0
        while swept < limit:
            batch = min(SWEEP_BATCH, limit - swept)
            [count] = await self._redis.run("sweep", keep_events_s=keep_events_s, limit=batch)
            swept += count
            if count < batch:
                break
        return swept

    async def _self_test(self) -> None:
        if not await round_trips(self):
            raise StoreError(
                f"The store at {self._redis.address} does not return what was written."
            )

    # --- conversations ----------------------------------------------------------------------------

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        [outcome] = await self._redis.run(
            "create_conversation",
            ref=to_ref(tenant, conversation.id),
            created_at=conversation.created_at,
            metadata=msgspec.json.encode(conversation.metadata),
            items=_pack_items(items),
        )
        if outcome != b"ok":
            raise StoreError(f"Conversation {conversation.id!r} already exists.")

    async def list_conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        return await self._lists.conversations(tenant, query)

    async def get_conversation(self, tenant: str, conversation_id: str) -> Conversation:
        created_at, metadata = await self._run_in_conversation(
            "conversation", tenant, conversation_id
        )
        return Conversation(
            id=conversation_id, created_at=int(created_at), metadata=msgspec.json.decode(metadata)
        )

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        created_at = await self._run_in_conversation(
            "update_conversation", tenant, conversation_id, metadata=msgspec.json.encode(metadata)
        )
        return Conversation(id=conversation_id, created_at=int(created_at), metadata=dict(metadata))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        await self._run_in_conversation("delete_conversation", tenant, conversation_id)

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        return await self._items.of_conversation(tenant, conversation_id, query)

    async def get_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> StoredItem:
        [found] = to_items(
            await self._run_in_conversation(
                "conversation_item", tenant, conversation_id, item_id=item_id
            )
        )
        return found

    async def create_conversation_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        await self._run_in_conversation(
            "add_items", tenant, conversation_id, items=_pack_items(items)
        )

    async def delete_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> None:
        await self._run_in_conversation("remove_item", tenant, conversation_id, item_id=item_id)

    async def claim_conversation(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        await self._run_in_conversation(
            "claim", tenant, conversation_id, response_id=response_id, owner=owner
        )

    async def release_conversation(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        await self._run_in_conversation(
            "release", tenant, conversation_id, response_id=response_id, items=_pack_items(items)
        )

    async def _run_in_conversation(
        self, operation: str, tenant: str, conversation_id: str, **arguments: Any
    ) -> Any:
        ref = to_ref(tenant, conversation_id)
        outcome, *rest = await self._redis.run(operation, ref=ref, **arguments)
        if outcome == b"locked":
            raise ConversationLocked
        if outcome == b"no item":
            raise NotFound(f"There is no such item in conversation {conversation_id!r}.")
        if outcome == b"missing":
            raise conversation_not_found(conversation_id)
        return rest[0] if rest else None

    # --- runs -------------------------------------------------------------------------------------

    def record_heartbeat(self, owner: str, ttl_s: float) -> None:
        self._redis.run_sync("beat", owner=owner, ttl_s=ttl_s)

    async def count_waiting_runs(self) -> int:
        return int(*await self._redis.run("count_waiting"))

    async def end_heartbeat(self, owner: str) -> None:
        await self._redis.run("leave", owner=owner)

    async def lease_runs(
        self,
        owner: str,
        *,
        limit: int,
        waiting: bool = True,
        held: Mapping[str, int] = NO_RUNS,
        per_tenant: int | None = None,
    ) -> list[LeasedRun]:
        runs = await self._redis.run(
            "lease_runs",
            owner=owner,
            limit=limit,
            waiting=waiting,
            held={to_ref(tenant, ""): count for tenant, count in held.items()},
            per_tenant=ANY_NUMBER if per_tenant is None else per_tenant,
        )
        return [_to_leased_run(*run) for run in runs]

    async def take_over_run(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        outcome, *rest = await self._redis.run(
            "take_over", owner=owner, ref=to_ref(tenant, response_id)
        )
        if outcome == b"missing":
            raise response_not_found(response_id)
        return _to_leased_run(*rest[0]) if rest else None

    async def give_back_run(self, lease: Lease) -> bool:
        [outcome] = await self._redis.run("give_back", **_lease_arguments(lease))
        return _is_written(outcome, lease)

    async def list_leases(self, owner: str) -> list[Lease]:
        return [_to_lease(*lease) for lease in await self._redis.run("held_leases", owner=owner)]

    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        [outcome] = await self._redis.run(
            "append", **_lease_arguments(lease), events=_pack_chunk(events)
        )
        return _is_written(outcome, lease)

    async def read_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        outcome, *rest = await self._redis.run(
            "events", ref=to_ref(tenant, response_id), after=max(after, -1), bytes=limit_bytes
        )
        if outcome != b"ok":
            raise NotFound(f"There are no events of response {response_id!r}.")
        chunks, ends = rest
        return LogSlice(
            chunks=[
                EventChunk(first=first, count=end - first, body=body) for first, end, body in chunks
            ],
            ends=bool(ends),
        )

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        ref = to_ref(tenant, response_id)

        async def is_due() -> bool:
            [due] = await self._redis.run("has_new_events", ref=ref, after=max(after, -1))
            return bool(due)

        channel = f"{self._redis.prefix}new_events:{ref}".encode()
        with self._redis.raising_store_errors():
            await self._notifications.wait(channel, is_due, limit_s=limit_s)

    # --- Idempotency-Keys, webhooks, API keys, their use, traces, shared values -------------------

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
        holder, stored_fingerprint, exists = await self._redis.run(
            "reserve",
            key_ref=to_ref(tenant, key),
            ref=to_ref(tenant, response_id),
            fingerprint=fingerprint,
            owner=owner,
            expires_at=expires_at,
        )
        return IdempotencyRecord(
            response_id=_from_ref(holder)[1], fingerprint=stored_fingerprint, exists=bool(exists)
        )

    async def release_idempotency_key(self, tenant: str, key: str, response_id: str) -> None:
        await self._redis.run(
            "unreserve", key_ref=to_ref(tenant, key), ref=to_ref(tenant, response_id)
        )

    async def claim_due_deliveries(
        self, *, limit: int, claim_s: float, leave_out: Collection[str] = ()
    ) -> list[WebhookDelivery]:
        return await self._deliveries.claim_due(limit=limit, claim_s=claim_s, leave_out=leave_out)

    async def delay_delivery(self, delivery_id: str, seconds: float) -> None:
        await self._redis.run("delay_delivery", id=delivery_id, seconds=seconds)

    async def delete_delivery(self, delivery_id: str) -> None:
        await self._redis.run("delete_delivery", id=delivery_id)

    async def create_api_key(self, key: ApiKey) -> None:
        [outcome] = await self._redis.run(
            "add_key", id=key.id, hash=key.hash, body=_encode_key(key)
        )
        if outcome != b"ok":
            raise StoreError(f"API key {key.id!r}, or one with its hash, already exists.")

    async def list_api_keys(self) -> list[ApiKey]:
        keys = [_decode_key(body) for body in await self._redis.run("keys")]
        return sorted(keys, key=lambda key: key.created_at)

    async def get_api_key(self, hash: bytes) -> ApiKey | None:
        [body] = await self._redis.run("key", hash=hash)
        return _decode_key(body) if body else None

    async def update_api_key(self, key_id: str, policy: KeyPolicy) -> bool:
        while True:
            [before] = await self._redis.run("get_key", id=key_id)
            if not before:
                return False
            body = _encode_key(msgspec.structs.replace(_decode_key(before), policy=policy))
            [updated] = await self._redis.run("update_key", id=key_id, before=before, body=body)
            if updated:
                return True

    async def revoke_api_key(self, key_id: str) -> bool:
        [revoked] = await self._redis.run("revoke_key", id=key_id)
        return bool(revoked)

    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        place = slot and {
            "ref": to_ref(slot.tenant, slot.response_id),
            "owner": slot.owner,
            "limit": slot.limit,
        }
        async with self._key_locks.of(key_id):
            accepted, counts, runs = await self._redis.run(
                "reserve_usage",
                key_id=quote(key_id, safe=""),
                charges=_pack_charges(charges),
                slot=place,
            )
        return KeyUsage(accepted=bool(accepted), counts=list(map(int, counts)), runs=runs)

    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        [settled] = await self._redis.run(
            "settle_usage",
            key_id=quote(key_id, safe=""),
            ref=to_ref(tenant, response_id),
            charges=_pack_charges(charges),
        )
        return bool(settled)

    async def save_trace(self, lease: Lease, trace: bytes) -> bool:
        [outcome] = await self._redis.run("save_trace", **_lease_arguments(lease), trace=trace)
        return bool(outcome == b"ok")

    async def get_trace(self, tenant: str, response_id: str) -> bytes | None:
        outcome, *bodies = await self._redis.run("trace", ref=to_ref(tenant, response_id))
        if outcome != b"ok":
            raise response_not_found(response_id)
        body: bytes | None = bodies[0] if bodies else None
        return body

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        current: bytes
        [current] = await self._redis.run(
            "compare_and_set", name=name, value=value, expected=expected
        )
        return current


# --- names in Redis -------------------------------------------------------------------------------


def _from_ref(ref: bytes) -> tuple[str, str]:
    tenant, _, name = ref.decode().partition(":")
    return unquote(tenant), name


# --- arguments of scripts -------------------------------------------------------------------------


def _pack_items(items: Sequence[StoredItem]) -> list[dict[str, Any]]:
    return [{"id": item.id or "", "body": memoryview(item.raw)} for item in items]


def _pack_chunk(chunk: EventChunk | None) -> dict[str, Any] | None:
    return None if chunk is None else msgspec.structs.asdict(chunk)


def _pack_charges(charges: Sequence[Charge]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(charge) for charge in charges]


def _lease_arguments(lease: Lease) -> dict[str, Any]:
    return {"ref": to_ref(lease.tenant, lease.response_id), "epoch": lease.epoch}


def _run_arguments(run: NewRun) -> dict[str, Any]:
    return {
        "owner": run.owner or "",
        "epoch": 0 if run.owner is None else 1,
        "job": run.job,
        "events": _pack_chunk(run.events),
    }


def _conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None


# --- results of scripts ---------------------------------------------------------------------------


def _is_written(outcome: bytes, lease: Lease) -> bool:
    """Return whether the script has written. Raises: StoreError if events are out of order."""
    if outcome == b"gap":
        raise StoreError(f"Events of response {lease.response_id!r} are out of order.")
    return outcome == b"ok"


def _to_response(body: bytes, output: Sequence[bytes]) -> Response:
    return response_from(body, output[1::2])


def _to_lease(ref: bytes, epoch: int) -> Lease:
    tenant, response_id = _from_ref(ref)
    return Lease(tenant=tenant, response_id=response_id, epoch=epoch)


def _to_leased_run(
    ref: bytes, epoch: int, body: bytes, output: Sequence[bytes], job: bytes | None
) -> LeasedRun:
    return LeasedRun(lease=_to_lease(ref, epoch), response=_to_response(body, output), job=job)
