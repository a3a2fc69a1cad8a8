"""All that is kept, in one Redis, for any number of servers.

Every change is one script (lua/*.lua): others see all of it or nothing. One Redis with or without
replicas, no Cluster: a change touches keys that a Cluster would keep on different nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw

from antiphon.adapters.extras import install_command
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
    NewRun,
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
    SettingsError,
    StoreError,
)
from antiphon.domain.response import Response

try:
    from antiphon.adapters.stores.redis_durability import UNKNOWN, durability_of
    from antiphon.adapters.stores.redis_notifications import RedisNotifications
    from antiphon.adapters.stores.redis_scripts import RedisScripts
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"The store Redis needs a package. Install it with: {install_command('redis')}"
    ) from missing

SWEPT_AT_ONCE = 100
"""Nobody else is served while Redis sweeps so many."""

_encode_key = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(ApiKey).decode


class RedisStore(Store):
    """Several stores may share a Redis, each with a `prefix` of its own.

    Owners live by the clock of Redis, which is the same for all servers. `connections`,
    `retry_s` and `timeout_s`: see RedisScripts.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "antiphon:",
        connections: int = 16,
        retry_s: float = 2.0,
        timeout_s: float = 10.0,
    ) -> None:
        self._redis = RedisScripts(
            url,
            prefix=prefix,
            connections=connections,
            retry_s=retry_s,
            timeout_s=timeout_s,
        )
        self._news = RedisNotifications(self._redis.connection)
        self._durability = UNKNOWN

    @property
    def durability(self) -> str:
        """What may be lost, in one sentence; known once the store has started."""
        return self._durability

    async def start(self) -> None:
        await self._redis.start()
        try:
            with self._redis.raising_store_errors():
                self._durability = await durability_of(self._redis.client, self._redis.address)
            await self._prove()
        except StoreError as error:
            await self.aclose()
            raise SettingsError(str(error)) from error
        except SettingsError:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._news.aclose()
        await self._redis.aclose()

    async def check(self) -> None:
        with self._redis.raising_store_errors():
            await self._redis.client.set(f"{self._redis.prefix}check", 1)

    # --- responses --------------------------------------------------------------------------------

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        response, run = stored.response, stored.run
        [outcome] = await self._redis.run(
            "create",
            ref=_ref(tenant, response.id),
            status=response.status,
            body=body_of(response),
            parent=response.previous_response_id,
            conversation=_conversation_of(response),
            input=_items(stored.input),
            output=_items(output_of(response)),
            expires_at=stored.expires_at,
            key=None if run.key is None else _ref(tenant, run.key),
            **_run(run),
        )
        if outcome == b"no key":
            raise IdempotencyKeyInUse
        if outcome != b"ok":
            raise StoreError(f"There is a response {response.id!r} already.")

    async def finish(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        [outcome] = await self._redis.run(
            "finish",
            **_lease(lease),
            status=response.status,
            body=body_of(response),
            output=_items(output_of(response)),
            keeps_items=response.keeps_items,
            events=_chunk(events),
            notices=[msgspec.structs.asdict(delivery) for delivery in deliveries],
        )
        return _written(outcome, lease)

    async def get(self, tenant: str, response_id: str) -> Response:
        outcome, *found = await self._redis.run("get", ref=_ref(tenant, response_id))
        if outcome != b"ok":
            raise _no_response(response_id)
        return _response(*found[0])

    async def input_items(self, tenant: str, response_id: str) -> list[StoredItem]:
        return await self._chain(tenant, response_id, output=False)

    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        return await self._chain(tenant, response_id, output=True)

    async def item(self, tenant: str, item_id: str) -> StoredItem:
        outcome, *found = await self._redis.run("read_item", ref=_ref(tenant, item_id))
        if outcome != b"ok":
            raise NotFound(f"There is no item {item_id!r}.")
        return StoredItem(id=item_id, raw=Raw(found[0]))

    async def delete(self, tenant: str, response_id: str) -> None:
        [outcome] = await self._redis.run("delete", ref=_ref(tenant, response_id))
        if outcome != b"ok":
            raise _no_response(response_id)

    async def usage(self, tenant: str) -> StorageUsage:
        found = await self._redis.run("use", tenant=quote(tenant, safe=""))
        responses, size, waiting = (int(count or 0) for count in found)
        return StorageUsage(responses=responses, bytes=size, waiting=waiting)

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        gone = 0
        while gone < limit:
            batch = min(SWEPT_AT_ONCE, limit - gone)
            [swept] = await self._redis.run("sweep", keep_events_s=keep_events_s, limit=batch)
            gone += swept
            if swept < batch:
                break
        return gone

    async def _chain(self, tenant: str, response_id: str, *, output: bool) -> list[StoredItem]:
        ref = _ref(tenant, response_id)
        outcome, *found = await self._redis.run("read_chain", ref=ref, output=output)
        if outcome != b"ok":
            raise _no_response(response_id)
        return _stored(found[0])

    async def _prove(self) -> None:
        if not await round_trips(self):
            raise StoreError(
                f"The store at {self._redis.address} does not return what it was given."
            )

    # --- conversations ----------------------------------------------------------------------------

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        [outcome] = await self._redis.run(
            "create_conversation",
            ref=_ref(tenant, conversation.id),
            created_at=conversation.created_at,
            metadata=msgspec.json.encode(conversation.metadata),
            items=_items(items),
        )
        if outcome != b"ok":
            raise StoreError(f"There is a conversation {conversation.id!r} already.")

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        created_at, metadata = await self._in_conversation("conversation", tenant, conversation_id)
        return Conversation(
            id=conversation_id, created_at=int(created_at), metadata=msgspec.json.decode(metadata)
        )

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        created_at = await self._in_conversation(
            "update_conversation", tenant, conversation_id, metadata=msgspec.json.encode(metadata)
        )
        return Conversation(id=conversation_id, created_at=int(created_at), metadata=dict(metadata))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        await self._in_conversation("delete_conversation", tenant, conversation_id)

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[StoredItem]:
        return _stored(await self._in_conversation("conversation_items", tenant, conversation_id))

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        await self._in_conversation("add_items", tenant, conversation_id, items=_items(items))

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        await self._in_conversation("remove_item", tenant, conversation_id, item_id=item_id)

    async def claim(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        await self._in_conversation(
            "claim", tenant, conversation_id, response_id=response_id, owner=owner
        )

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        await self._in_conversation(
            "release", tenant, conversation_id, response_id=response_id, items=_items(items)
        )

    async def _in_conversation(
        self, operation: str, tenant: str, conversation_id: str, **given: Any
    ) -> Any:
        ref = _ref(tenant, conversation_id)
        outcome, *found = await self._redis.run(operation, ref=ref, **given)
        if outcome == b"locked":
            raise ConversationLocked
        if outcome == b"no item":
            raise NotFound(f"There is no such item in conversation {conversation_id!r}.")
        if outcome == b"missing":
            raise NotFound(f"There is no conversation {conversation_id!r}.")
        return found[0] if found else None

    # --- runs -------------------------------------------------------------------------------------

    def beat(self, owner: str, ttl_s: float) -> None:
        self._redis.run_sync("beat", owner=owner, ttl_s=ttl_s)

    async def leave(self, owner: str) -> None:
        await self._redis.run("leave", owner=owner)

    async def lease_runs(self, owner: str, *, limit: int, waiting: bool = True) -> list[LeasedRun]:
        taken = await self._redis.run("take", owner=owner, limit=limit, waiting=waiting)
        return [_taken(*run) for run in taken]

    async def take_over(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        outcome, *found = await self._redis.run(
            "take_over", owner=owner, ref=_ref(tenant, response_id)
        )
        if outcome == b"missing":
            raise _no_response(response_id)
        return _taken(*found[0]) if found else None

    async def give_back(self, lease: Lease) -> bool:
        [outcome] = await self._redis.run("give_back", **_lease(lease))
        return _written(outcome, lease)

    async def held_leases(self, owner: str) -> list[Lease]:
        return [_leased(*one) for one in await self._redis.run("held", owner=owner)]

    async def append(self, lease: Lease, events: EventChunk) -> bool:
        [outcome] = await self._redis.run("append", **_lease(lease), events=_chunk(events))
        return _written(outcome, lease)

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        outcome, *found = await self._redis.run(
            "events", ref=_ref(tenant, response_id), after=max(after, -1), bytes=limit_bytes
        )
        if outcome != b"ok":
            raise NotFound(f"There are no events of response {response_id!r}.")
        chunks, ends = found
        return LogSlice(
            chunks=[
                EventChunk(first=first, count=end - first, body=body) for first, end, body in chunks
            ],
            ends=bool(ends),
        )

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        ref = _ref(tenant, response_id)

        async def is_due() -> bool:
            [due] = await self._redis.run("has_news", ref=ref, after=max(after, -1))
            return bool(due)

        channel = f"{self._redis.prefix}news:{ref}".encode()
        with self._redis.raising_store_errors():
            await self._news.wait(channel, is_due, limit_s=limit_s)

    # --- Idempotency-Keys, notices, API keys, agreements ------------------------------------------

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
        ref, first_fingerprint, exists = await self._redis.run(
            "reserve",
            taken=_ref(tenant, key),
            ref=_ref(tenant, response_id),
            fingerprint=fingerprint,
            owner=owner,
            expires_at=expires_at,
        )
        return IdempotencyRecord(
            response_id=_unref(ref)[1], fingerprint=first_fingerprint, exists=bool(exists)
        )

    async def unreserve(self, tenant: str, key: str, response_id: str) -> None:
        await self._redis.run("unreserve", taken=_ref(tenant, key), ref=_ref(tenant, response_id))

    async def claim_due(self, *, limit: int, claim_s: float) -> list[WebhookDelivery]:
        found = await self._redis.run("due", limit=limit, hold_s=claim_s)
        return [_notice(*one) for one in found]

    async def delay(self, delivery_id: str, seconds: float) -> None:
        await self._redis.run("delay", id=delivery_id, seconds=seconds)

    async def remove(self, delivery_id: str) -> None:
        await self._redis.run("remove", id=delivery_id)

    async def add_key(self, key: ApiKey) -> None:
        [outcome] = await self._redis.run(
            "add_key", id=key.id, hash=key.hash, body=_encode_key(key)
        )
        if outcome != b"ok":
            raise StoreError(f"There is an API key {key.id!r}, or one of this hash, already.")

    async def keys(self) -> list[ApiKey]:
        found = [_decode_key(body) for body in await self._redis.run("keys")]
        return sorted(found, key=lambda key: key.created_at)

    async def key(self, hash: bytes) -> ApiKey | None:
        [body] = await self._redis.run("key", hash=hash)
        return _decode_key(body) if body else None

    async def revoke_key(self, key_id: str) -> bool:
        [revoked] = await self._redis.run("revoke_key", id=key_id)
        return bool(revoked)

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        kept: bytes
        [kept] = await self._redis.run("agree", name=name, value=value, instead_of=expected)
        return kept


# --- names in Redis -------------------------------------------------------------------------------


def _ref(tenant: str, name: str) -> str:
    """Return a name that no other tenant's is equal to.

    >>> _ref("a:b", "c"), _ref("a", "b:c")
    ('a%3Ab:c', 'a:b:c')
    """
    return f"{quote(tenant, safe='')}:{name}"


def _unref(ref: bytes) -> tuple[str, str]:
    tenant, _, name = ref.decode().partition(":")
    return unquote(tenant), name


# --- what scripts are given -----------------------------------------------------------------------


def _items(items: Sequence[StoredItem]) -> list[dict[str, Any]]:
    return [{"id": item.id or "", "body": bytes(item.raw)} for item in items]


def _chunk(chunk: EventChunk | None) -> dict[str, Any] | None:
    return None if chunk is None else msgspec.structs.asdict(chunk)


def _lease(lease: Lease) -> dict[str, Any]:
    return {"ref": _ref(lease.tenant, lease.response_id), "epoch": lease.epoch}


def _run(run: NewRun) -> dict[str, Any]:
    return {
        "owner": run.owner or "",
        "epoch": 0 if run.owner is None else 1,
        "job": run.job,
        "events": _chunk(run.events),
    }


def _conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None


# --- what scripts return --------------------------------------------------------------------------


def _written(outcome: bytes, lease: Lease) -> bool:
    """Raises: StoreError for events that do not follow those before them."""
    if outcome == b"gap":
        raise StoreError(
            f"Events of response {lease.response_id!r} do not follow those that are kept."
        )
    return outcome == b"ok"


def _pairs(found: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(found[::2], found[1::2], strict=True)


def _stored(found: Sequence[bytes]) -> list[StoredItem]:
    return [StoredItem(id=item_id.decode(), raw=Raw(body)) for item_id, body in _pairs(found)]


def _response(body: bytes, output: Sequence[bytes]) -> Response:
    return response_from(body, output[1::2])


def _leased(ref: bytes, epoch: int) -> Lease:
    tenant, response_id = _unref(ref)
    return Lease(tenant=tenant, response_id=response_id, epoch=epoch)


def _taken(
    ref: bytes, epoch: int, body: bytes, output: Sequence[bytes], job: bytes | None
) -> LeasedRun:
    return LeasedRun(lease=_leased(ref, epoch), response=_response(body, output), job=job)


def _notice(
    delivery_id: bytes, tenant: bytes, endpoint: bytes, body: bytes, attempts: int
) -> WebhookDelivery:
    return WebhookDelivery(
        id=delivery_id.decode(),
        tenant=tenant.decode(),
        endpoint=endpoint.decode(),
        body=body,
        attempts=attempts,
    )


def _no_response(response_id: str) -> NotFound:
    return NotFound(f"There is no response {response_id!r}.")
