"""The store in this process's memory: nothing outlives it, and its size is bounded."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec.structs import replace

from antiphon.adapters.stores.memory_records import (
    Claim,
    ConversationRecord,
    OutboxEntry,
    ReservedKey,
    ResponseRecord,
    copies_of,
)
from antiphon.adapters.stores.stored_json import body_of, output_of
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
from antiphon.domain.errors import ConversationLocked, IdempotencyKeyInUse, NotFound, StoreError
from antiphon.domain.response import TERMINAL, Response

Key = tuple[str, str]
"""A tenant and an id."""


class MemoryStore(Store):
    """Past `keep` responses, those that were created first are deleted; running ones never are.

    The same number bounds conversations; one that a response has claimed is not deleted. It is for
    one event loop; only `beat` may be called from any thread. `clock` is the time of day, `steady`
    one that nobody sets back or forward.
    """

    def __init__(
        self,
        *,
        keep: int = 10_000,
        clock: Clock = time.time,
        steady: Clock = time.monotonic,
    ) -> None:
        self._keep = keep
        self._clock = clock
        self._steady = steady
        self._kept: dict[Key, ResponseRecord] = {}
        self._unfinished: dict[Key, ResponseRecord] = {}
        self._conversations: dict[Key, ConversationRecord] = {}
        # An item that is in a response and in a conversation is here twice.
        self._items: dict[Key, list[StoredItem]] = {}
        self._responses: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._alive_until: dict[str, float] = {}
        self._reserved: dict[Key, ReservedKey] = {}
        self._reserved_by: dict[Key, str] = {}
        self._outbox: dict[str, OutboxEntry] = {}
        self._api_keys: dict[str, ApiKey] = {}
        self._agreed: dict[str, bytes] = {}

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def check(self) -> None:
        pass

    # --- responses --------------------------------------------------------------------------------

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        response = stored.response
        key = (tenant, response.id)
        if stored.run.key is not None and self._holder(tenant, stored.run.key) != response.id:
            raise IdempotencyKeyInUse
        if key in self._kept:
            raise StoreError(f"There is a response {response.id!r} already.")
        parent = self._kept.get((tenant, response.previous_response_id or ""))
        kept = ResponseRecord(tenant, stored, parent, self._conversation_of(tenant, response))
        if parent is not None:
            parent.used_by += 1
        self._kept[key] = kept
        if response.status not in TERMINAL:
            self._unfinished[key] = kept
        self._responses[tenant] += 1
        self._bytes[tenant] += len(kept.body) + (kept.log.size if kept.log else 0)
        self._list(tenant, kept.input)
        self._list(tenant, kept.output)
        self._make_room()

    async def finish(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        kept = self._leased(lease)
        if kept is None:
            return False
        if events is not None:
            self._add(kept, events)
        tenant = lease.tenant
        del self._unfinished[tenant, lease.response_id]
        self._unlist(tenant, kept.output)
        self._bytes[tenant] -= len(kept.body)
        kept.body, kept.output = body_of(response), output_of(response)
        kept.owner, kept.job, kept.finished_at = None, None, self._clock()
        self._bytes[tenant] += len(kept.body)
        self._list(tenant, kept.output)
        if response.conversation is not None:
            left = [*kept.input, *kept.output] if response.keeps_items else []
            self._release(tenant, response.conversation.id, response.id, left)
        for delivery in deliveries:
            self._outbox[delivery.id] = OutboxEntry(delivery, self._steady())
        kept.wake()
        return True

    async def get(self, tenant: str, response_id: str) -> Response:
        return self._find(tenant, response_id).response()

    async def input_items(self, tenant: str, response_id: str) -> list[StoredItem]:
        kept = self._find(tenant, response_id)
        before = [
            item for one in kept.ancestors() for item in (*one.given(), *one.input, *one.output)
        ]
        return [*before, *kept.given(), *kept.input]

    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        kept = self._find(tenant, response_id)
        return await self.input_items(tenant, response_id) + kept.output

    async def item(self, tenant: str, item_id: str) -> StoredItem:
        items = self._items.get((tenant, item_id))
        if not items:
            raise NotFound(f"There is no item {item_id!r}.")
        return items[-1]

    async def delete(self, tenant: str, response_id: str) -> None:
        self._find(tenant, response_id)
        self._forget(tenant, response_id)

    async def usage(self, tenant: str) -> StorageUsage:
        waiting = [kept for kept in self._unfinished.values() if kept.owner is None]
        return StorageUsage(
            responses=self._responses[tenant],
            bytes=self._bytes[tenant],
            waiting=sum(kept.tenant == tenant for kept in waiting),
        )

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        past = list(islice(self._past(self._clock(), keep_events_s), limit))
        for forget in past:
            forget()
        return len(past)

    # --- conversations ----------------------------------------------------------------------------

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        if (tenant, conversation.id) in self._conversations:
            raise StoreError(f"There is a conversation {conversation.id!r} already.")
        self._conversations[tenant, conversation.id] = ConversationRecord(conversation)
        self._append(tenant, self._conversations[tenant, conversation.id], copies_of(items))
        self._forget_old_conversations()

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        return self._find_conversation(tenant, conversation_id).about

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        found = self._find_conversation(tenant, conversation_id)
        found.about = replace(found.about, metadata=dict(metadata))
        return found.about

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        self._find_conversation(tenant, conversation_id)
        self._forget_conversation(tenant, conversation_id)

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[StoredItem]:
        return list(self._find_conversation(tenant, conversation_id).items.values())

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        found = self._find_conversation(tenant, conversation_id)
        if self._is_claimed(tenant, found):
            raise ConversationLocked
        self._append(tenant, found, copies_of(items))

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        items = self._find_conversation(tenant, conversation_id).items
        places = [place for place, item in items.items() if item.id == item_id]
        if not places:
            raise NotFound(f"There is no item {item_id!r} in conversation {conversation_id!r}.")
        self._unlist(tenant, [items.pop(place) for place in places])

    async def claim(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        found = self._find_conversation(tenant, conversation_id)
        if self._is_claimed(tenant, found):
            raise ConversationLocked
        found.claim = Claim(response_id, owner)

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        self._release(tenant, conversation_id, response_id, copies_of(items))

    # --- runs -------------------------------------------------------------------------------------

    def beat(self, owner: str, ttl_s: float) -> None:
        self._alive_until[owner] = self._steady() + ttl_s

    async def leave(self, owner: str) -> None:
        self._alive_until.pop(owner, None)

    async def lease_runs(self, owner: str, *, limit: int, waiting: bool = True) -> list[LeasedRun]:
        running = self._unfinished.values()
        others = (kept for kept in running if kept.owner != owner)
        asked = (kept for kept in others if waiting or kept.owner is not None)
        free = (kept for kept in asked if not self._is_alive(kept.owner))
        return [_taken(kept, owner) for kept in list(islice(free, limit))]

    async def take_over(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        kept = self._find(tenant, response_id)
        return _taken(kept, owner) if (tenant, response_id) in self._unfinished else None

    async def give_back(self, lease: Lease) -> bool:
        kept = self._leased(lease)
        if kept is None:
            return False
        kept.owner = None
        return True

    async def held_leases(self, owner: str) -> list[Lease]:
        return [
            Lease(tenant=tenant, response_id=response_id, epoch=kept.epoch)
            for (tenant, response_id), kept in self._unfinished.items()
            if kept.owner == owner
        ]

    async def append(self, lease: Lease, events: EventChunk) -> bool:
        kept = self._leased(lease)
        if kept is None:
            return False
        self._add(kept, events)
        kept.wake()
        return True

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        kept = self._find(tenant, response_id)
        if kept.log is None:
            raise NotFound(f"There are no events of response {response_id!r}.")
        chunks = kept.log.read(after, limit_bytes)
        over = (tenant, response_id) not in self._unfinished
        return LogSlice(
            chunks=chunks, ends=over and (not chunks or chunks[-1] is kept.log.chunks[-1])
        )

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        kept = self._unfinished.get((tenant, response_id))
        if kept is None or kept.log is None or kept.log.last > after:
            return
        woken = asyncio.get_running_loop().create_future()
        kept.waiting.append(woken)
        try:
            await asyncio.wait([woken], timeout=limit_s)
        finally:
            if woken in kept.waiting:
                kept.waiting.remove(woken)

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
        reserved = self._reserved.get((tenant, key))
        if reserved is None or self._is_free(tenant, reserved):
            if reserved is not None:
                self._free(tenant, reserved.response_id)
            reserved = ReservedKey(
                response_id=response_id,
                fingerprint=fingerprint,
                owner=owner,
                expires_at=expires_at,
            )
            self._reserved[tenant, key] = reserved
            self._reserved_by[tenant, response_id] = key
        return IdempotencyRecord(
            response_id=reserved.response_id,
            fingerprint=reserved.fingerprint,
            exists=(tenant, reserved.response_id) in self._kept,
        )

    async def unreserve(self, tenant: str, key: str, response_id: str) -> None:
        reserved = self._reserved_by.get((tenant, response_id)) == key
        if reserved and (tenant, response_id) not in self._kept:
            self._free(tenant, response_id)

    # --- notices ----------------------------------------------------------------------------------

    async def claim_due(self, *, limit: int, claim_s: float) -> list[WebhookDelivery]:
        now = self._steady()
        found = sorted(
            (due for due in self._outbox.values() if due.at <= now), key=lambda due: due.at
        )[:limit]
        deliveries = [due.delivery for due in found]
        for due in found:
            due.delivery = replace(due.delivery, attempts=due.delivery.attempts + 1)
            due.at = now + claim_s
        return deliveries

    async def delay(self, delivery_id: str, seconds: float) -> None:
        if delivery_id in self._outbox:
            self._outbox[delivery_id].at = self._steady() + seconds

    async def remove(self, delivery_id: str) -> None:
        self._outbox.pop(delivery_id, None)

    # --- API keys ---------------------------------------------------------------------------------

    async def add_key(self, key: ApiKey) -> None:
        if key.id in self._api_keys or await self.key(key.hash) is not None:
            raise StoreError(f"There is a key {key.id!r} already, or one of its hash.")
        self._api_keys[key.id] = key

    async def keys(self) -> list[ApiKey]:
        return sorted(self._api_keys.values(), key=lambda key: key.created_at)

    async def key(self, hash: bytes) -> ApiKey | None:
        return next((key for key in self._api_keys.values() if key.hash == hash), None)

    async def revoke_key(self, key_id: str) -> bool:
        return self._api_keys.pop(key_id, None) is not None

    # --- agreements -------------------------------------------------------------------------------

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        if self._agreed.get(name) in (None, expected):
            self._agreed[name] = value
        return self._agreed[name]

    # ----------------------------------------------------------------------------------------------

    def _is_alive(self, owner: str | None) -> bool:
        return self._alive_until.get(owner or "", -math.inf) > self._steady()

    def _leased(self, lease: Lease) -> ResponseRecord | None:
        """Return what the lease is for; None if it is void."""
        kept = self._unfinished.get((lease.tenant, lease.response_id))
        if kept is None or kept.owner is None or kept.epoch != lease.epoch:
            return None
        return kept

    def _add(self, kept: ResponseRecord, events: EventChunk) -> None:
        if kept.log is None:
            raise StoreError("No log is kept of this response.")
        if not kept.log.has(events):
            kept.log.add(events)
            self._bytes[kept.tenant] += len(events.body)

    def _is_claimed(self, tenant: str, found: ConversationRecord) -> bool:
        claim = found.claim
        if claim is None:
            return False
        return self._is_alive(claim.owner) or (tenant, claim.response_id) in self._unfinished

    def _is_free(self, tenant: str, reserved: ReservedKey) -> bool:
        if reserved.expires_at <= self._clock():
            return True
        exists = (tenant, reserved.response_id) in self._kept
        return not exists and not self._is_alive(reserved.owner)

    def _free(self, tenant: str, response_id: str) -> None:
        """Free the Idempotency-Key that the response has, if it has one."""
        key = self._reserved_by.pop((tenant, response_id), None)
        if key is not None:
            del self._reserved[tenant, key]

    def _holder(self, tenant: str, key: str) -> str | None:
        reserved = self._reserved.get((tenant, key))
        return reserved.response_id if reserved else None

    def _release(
        self, tenant: str, conversation_id: str, response_id: str, items: Sequence[StoredItem]
    ) -> None:
        found = self._conversations.get((tenant, conversation_id))
        if found is not None and found.claim and found.claim.response_id == response_id:
            found.claim = None
            self._append(tenant, found, items)

    def _find_conversation(self, tenant: str, conversation_id: str) -> ConversationRecord:
        try:
            return self._conversations[tenant, conversation_id]
        except KeyError:
            raise NotFound(f"There is no conversation {conversation_id!r}.") from None

    def _conversation_of(self, tenant: str, response: Response) -> ConversationRecord | None:
        ref = response.conversation
        return self._conversations.get((tenant, ref.id)) if ref else None

    def _append(self, tenant: str, found: ConversationRecord, items: Sequence[StoredItem]) -> None:
        found.append(items)
        self._list(tenant, items)

    def _forget_old_conversations(self) -> None:
        while len(self._conversations) > self._keep:
            talks = self._conversations.items()
            over = next((key for key, talk in talks if not self._is_claimed(key[0], talk)), None)
            if over is None:
                return
            self._forget_conversation(*over)

    def _forget_conversation(self, tenant: str, conversation_id: str) -> None:
        found = self._conversations.pop((tenant, conversation_id))
        self._unlist(tenant, found.items.values())
        found.items.clear()

    def _find(self, tenant: str, response_id: str) -> ResponseRecord:
        try:
            return self._kept[tenant, response_id]
        except KeyError:
            raise NotFound(f"There is no response {response_id!r}.") from None

    def _make_room(self) -> None:
        while len(self._kept) > self._keep:
            over = next((key for key in self._kept if key not in self._unfinished), None)
            if over is None:
                return
            self._forget(*over)

    def _forget(self, tenant: str, response_id: str) -> None:
        kept: ResponseRecord | None = self._kept.pop((tenant, response_id))
        assert kept is not None
        self._unfinished.pop((tenant, response_id), None)
        self._free(tenant, response_id)
        self._forget_log(kept)
        self._responses[tenant] -= 1
        self._bytes[tenant] -= len(kept.body)
        kept.deleted, kept.body, kept.job = True, b"", None
        claim = kept.conversation.claim if kept.conversation else None
        if kept.conversation and claim and claim.response_id == response_id:
            kept.conversation.claim = None
        # Items go once no response continues the one that brought them; so may those before it.
        while kept is not None and kept.deleted and not kept.used_by:
            self._unlist(tenant, (*kept.input, *kept.output))
            kept = kept.parent
            if kept is not None:
                kept.used_by -= 1

    def _past(self, now: float, keep_events_s: float) -> Iterator[Callable[[], None]]:
        """Return what forgets each thing that is past its time."""
        for key, kept in self._kept.items():
            if key in self._unfinished:
                continue
            if _is_past(kept.expires_at, now):
                yield partial(self._forget, *key)
            elif kept.log and _is_past(kept.finished_at, now - keep_events_s):
                yield partial(self._forget_log, kept)
        for (tenant, _), reserved in self._reserved.items():
            if _is_past(reserved.expires_at, now):
                yield partial(self._free, tenant, reserved.response_id)

    def _forget_log(self, kept: ResponseRecord) -> None:
        self._bytes[kept.tenant] -= kept.log.size if kept.log else 0
        kept.log = None
        kept.wake()

    def _list(self, tenant: str, items: Iterable[StoredItem]) -> None:
        for item in items:
            self._bytes[tenant] += len(item.raw)
            if item.id:
                self._items.setdefault((tenant, item.id), []).append(item)

    def _unlist(self, tenant: str, items: Iterable[StoredItem]) -> None:
        for item in items:
            self._bytes[tenant] -= len(item.raw)
            listed = self._items.get((tenant, item.id), [])
            where = (place for place, one in enumerate(listed) if one is item)
            if (place := next(where, None)) is not None:
                del listed[place]
            if not listed:
                self._items.pop((tenant, item.id), None)


def _taken(kept: ResponseRecord, owner: str) -> LeasedRun:
    kept.owner = owner
    kept.epoch += 1
    response = kept.response()
    lease = Lease(tenant=kept.tenant, response_id=response.id, epoch=kept.epoch)
    return LeasedRun(lease=lease, response=response, job=kept.job)


def _is_past(at: float | None, now: float) -> bool:
    return at is not None and at <= now
