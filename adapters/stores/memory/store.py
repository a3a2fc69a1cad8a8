"""A store in this process's memory: bounded in size, and lost when the process ends."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from msgspec.structs import replace

from antiphon.adapters.stores.listing import Listed, items_of
from antiphon.adapters.stores.memory.records import (
    Claim,
    ConversationRecord,
    ItemIndex,
    KeyReservation,
    OutboxEntry,
    ResponseRecord,
    copy_items,
)
from antiphon.adapters.stores.memory.search import search_records
from antiphon.adapters.stores.memory.usage import KeyCounters
from antiphon.adapters.stores.not_found import conversation_not_found, response_not_found
from antiphon.adapters.stores.stored_json import body_of, output_of
from antiphon.adapters.stores.tenant_turns import take_turns
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
from antiphon.domain.errors import ConversationLocked, IdempotencyKeyInUse, NotFound, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import TERMINAL, Response
from antiphon.domain.responses.response_lists import ResponseSummary, summary_from
from antiphon.domain.responses.text_search import TextSearch

Key = tuple[str, str]
"""A tenant and an id."""


class MemoryStore(Store):
    """Keep at most `keep` responses and as many conversations; delete the oldest beyond that.

    Unfinished responses and claimed conversations are never deleted for this. Use it from one event
    loop; only `record_heartbeat` is thread-safe. `steady` is a monotonic `clock`.
    """

    outlives_server = False

    def __init__(
        self, *, keep: int = 10_000, clock: Clock = time.time, steady: Clock = time.monotonic
    ) -> None:
        self._keep = keep
        self._clock = clock
        self._steady = steady
        self._records: Listed[ResponseRecord] = Listed()
        self._unfinished: dict[Key, ResponseRecord] = {}
        self._conversations: Listed[ConversationRecord] = Listed()
        self._response_counts: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._items = ItemIndex(self._bytes)
        self._alive_until: dict[str, float] = {}
        self._reservations: dict[Key, KeyReservation] = {}
        self._reserved_keys: dict[Key, str] = {}
        self._outbox: dict[str, OutboxEntry] = {}
        self._api_keys: dict[str, ApiKey] = {}
        self._key_counters: defaultdict[str, KeyCounters] = defaultdict(KeyCounters)
        self._shared_values: dict[str, bytes] = {}

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def check(self) -> None: ...

    # --- responses --------------------------------------------------------------------------------

    async def create_response(self, tenant: str, stored: StoredResponse) -> None:
        response = stored.response
        key = (tenant, response.id)
        if stored.run.key is not None:
            reservation = self._reservations.get((tenant, stored.run.key))
            if reservation is None or reservation.response_id != response.id:
                raise IdempotencyKeyInUse
        if key in self._records:
            raise StoreError(f"Response {response.id!r} already exists.")
        parent = self._records.get((tenant, response.previous_response_id or ""))
        record = ResponseRecord(tenant, stored, parent, self._conversation_of(tenant, response))
        if parent is not None:
            parent.child_count += 1
        self._records[key] = record
        if response.status not in TERMINAL:
            self._unfinished[key] = record
        self._response_counts[tenant] += 1
        self._bytes[tenant] += len(record.body) + (record.log.size if record.log else 0)
        self._items.add(tenant, record.input)
        self._items.add(tenant, record.output)
        self._evict_old_responses()

    async def finish_response(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        record = self._find_leased(lease)
        if record is None:
            return False
        if events is not None:
            self._append_events(record, events)
        tenant = lease.tenant
        del self._unfinished[tenant, lease.response_id]
        self._items.remove(tenant, record.output)
        self._bytes[tenant] -= len(record.body)
        record.body, record.output = body_of(response), output_of(response)
        record.owner, record.job, record.finished_at = None, None, self._clock()
        self._bytes[tenant] += len(record.body)
        self._items.add(tenant, record.output)
        if response.conversation is not None:
            items = [*record.input, *record.output] if response.keeps_items else []
            self._release(tenant, response.conversation.id, response.id, items)
        for delivery in deliveries:
            self._outbox[delivery.id] = OutboxEntry(delivery, self._steady())
        record.wake_waiters()
        return True

    async def get_response(self, tenant: str, response_id: str) -> Response:
        return self._find_response(tenant, response_id).response()

    async def list_responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        return [summary_from(record.body) for record in self._records.page(tenant, query)]

    async def search_responses(
        self, tenant: str, search: TextSearch, query: StorePageQuery
    ) -> FoundPage:
        return search_records(self._records, tenant, search, query)

    async def list_input_items(
        self, tenant: str, response_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        return items_of(self._find_response(tenant, response_id).input_parts(), query)

    async def get_context(self, tenant: str, response_id: str) -> list[StoredItem]:
        record = self._find_response(tenant, response_id)
        return items_of([*record.input_parts(), record.output])

    async def get_item(self, tenant: str, item_id: str) -> StoredItem:
        return self._items.find_newest(tenant, item_id)

    async def delete_response(self, tenant: str, response_id: str) -> None:
        self._find_response(tenant, response_id)
        self._delete_response(tenant, response_id)

    async def get_storage_usage(self, tenant: str) -> StorageUsage:
        running = self._unfinished.values()
        return StorageUsage(
            responses=self._response_counts[tenant],
            bytes=self._bytes[tenant],
            waiting=sum(each.tenant == tenant and each.owner is None for each in running),
        )

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        expired = list(islice(self._expired_deletions(self._clock(), keep_events_s), limit))
        for delete in expired:
            delete()
        for key_id, counters in list(self._key_counters.items()):
            counters.clean_up(self._clock(), self._is_taken)
            if counters.is_empty:
                del self._key_counters[key_id]
        return len(expired)

    # --- conversations ----------------------------------------------------------------------------

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        if (tenant, conversation.id) in self._conversations:
            raise StoreError(f"Conversation {conversation.id!r} already exists.")
        record = ConversationRecord(conversation)
        self._conversations[tenant, conversation.id] = record
        self._append_items(tenant, record, copy_items(items))
        self._evict_old_conversations()

    async def list_conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        return [record.conversation for record in self._conversations.page(tenant, query)]

    async def get_conversation(self, tenant: str, conversation_id: str) -> Conversation:
        return self._find_conversation(tenant, conversation_id).conversation

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        record = self._find_conversation(tenant, conversation_id)
        record.conversation = replace(record.conversation, metadata=dict(metadata))
        return record.conversation

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        self._find_conversation(tenant, conversation_id)
        self._delete_conversation(tenant, conversation_id)

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        record = self._find_conversation(tenant, conversation_id)
        return items_of([list(record.items.values())], query)

    async def get_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> StoredItem:
        return self._find_conversation(tenant, conversation_id).find(item_id)

    async def create_conversation_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        record = self._find_conversation(tenant, conversation_id)
        if self._is_claimed(tenant, record):
            raise ConversationLocked
        self._append_items(tenant, record, copy_items(items))

    async def delete_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> None:
        record = self._find_conversation(tenant, conversation_id)
        self._items.remove(tenant, record.remove(item_id))

    async def claim_conversation(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        record = self._find_conversation(tenant, conversation_id)
        if self._is_claimed(tenant, record):
            raise ConversationLocked
        record.claim = Claim(response_id, owner)

    async def release_conversation(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        self._release(tenant, conversation_id, response_id, copy_items(items))

    # --- runs -------------------------------------------------------------------------------------

    def record_heartbeat(self, owner: str, ttl_s: float) -> None:
        self._alive_until[owner] = self._steady() + ttl_s

    async def count_waiting_runs(self) -> int:
        return sum(record.owner is None for record in self._unfinished.values())

    async def end_heartbeat(self, owner: str) -> None:
        self._alive_until.pop(owner, None)

    async def lease_runs(
        self,
        owner: str,
        *,
        limit: int,
        waiting: bool = True,
        held: Mapping[str, int] = NO_RUNS,
        per_tenant: int | None = None,
    ) -> list[LeasedRun]:
        unfinished = self._unfinished.values()
        others = (record for record in unfinished if record.owner != owner)
        candidates = (record for record in others if waiting or record.owner is not None)
        ownerless = [record for record in candidates if not self._is_alive(record.owner)]
        turns = take_turns(
            enumerate(record.tenant for record in ownerless),
            limit,
            held=held,
            per_tenant=per_tenant,
        )
        return [ownerless[index].lease(owner) for index in turns]

    async def take_over_run(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        record = self._find_response(tenant, response_id)
        return record.lease(owner) if (tenant, response_id) in self._unfinished else None

    async def give_back_run(self, lease: Lease) -> bool:
        record = self._find_leased(lease)
        if record is None:
            return False
        record.owner = None
        return True

    async def list_leases(self, owner: str) -> list[Lease]:
        return [
            Lease(tenant=tenant, response_id=response_id, epoch=record.epoch)
            for (tenant, response_id), record in self._unfinished.items()
            if record.owner == owner
        ]

    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        record = self._find_leased(lease)
        if record is None:
            return False
        self._append_events(record, events)
        record.wake_waiters()
        return True

    async def read_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        record = self._find_response(tenant, response_id)
        if record.log is None:
            raise NotFound(f"There are no events of response {response_id!r}.")
        chunks = record.log.read(after, limit_bytes)
        is_finished = (tenant, response_id) not in self._unfinished
        reaches_end = not chunks or chunks[-1] is record.log.chunks[-1]
        return LogSlice(chunks=chunks, ends=is_finished and reaches_end)

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        record = self._unfinished.get((tenant, response_id))
        if record is None or record.log is None or record.log.last_number > after:
            return
        waiter = asyncio.get_running_loop().create_future()
        record.waiters.append(waiter)
        try:
            await asyncio.wait([waiter], timeout=limit_s)
        finally:
            if waiter in record.waiters:
                record.waiters.remove(waiter)

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
        reservation = self._reservations.get((tenant, key))
        if reservation is None or self._is_key_free(tenant, reservation):
            if reservation is not None:
                self._free_key(tenant, reservation.response_id)
            reservation = KeyReservation(
                response_id=response_id,
                fingerprint=fingerprint,
                owner=owner,
                expires_at=expires_at,
            )
            self._reservations[tenant, key] = reservation
            self._reserved_keys[tenant, response_id] = key
        return IdempotencyRecord(
            response_id=reservation.response_id,
            fingerprint=reservation.fingerprint,
            exists=(tenant, reservation.response_id) in self._records,
        )

    async def release_idempotency_key(self, tenant: str, key: str, response_id: str) -> None:
        is_reserved = self._reserved_keys.get((tenant, response_id)) == key
        if is_reserved and (tenant, response_id) not in self._records:
            self._free_key(tenant, response_id)

    # --- webhooks ---------------------------------------------------------------------------------

    async def claim_due_deliveries(
        self, *, limit: int, claim_s: float, leave_out: Collection[str] = ()
    ) -> list[WebhookDelivery]:
        now = self._steady()
        wanted = [one for one in self._outbox.values() if one.delivery.endpoint not in leave_out]
        due = sorted((one for one in wanted if one.due_at <= now), key=lambda one: one.due_at)
        return [entry.claim(until=now + claim_s) for entry in due[:limit]]

    async def delay_delivery(self, delivery_id: str, seconds: float) -> None:
        if delivery_id in self._outbox:
            self._outbox[delivery_id].due_at = self._steady() + seconds

    async def delete_delivery(self, delivery_id: str) -> None:
        self._outbox.pop(delivery_id, None)

    # --- API keys ---------------------------------------------------------------------------------

    async def create_api_key(self, key: ApiKey) -> None:
        if key.id in self._api_keys or await self.get_api_key(key.hash) is not None:
            raise StoreError(f"API key {key.id!r}, or one with its hash, already exists.")
        self._api_keys[key.id] = key

    async def list_api_keys(self) -> list[ApiKey]:
        return sorted(self._api_keys.values(), key=lambda key: key.created_at)

    async def get_api_key(self, hash: bytes) -> ApiKey | None:
        return next((key for key in self._api_keys.values() if key.hash == hash), None)

    async def update_api_key(self, key_id: str, policy: KeyPolicy) -> bool:
        if key_id not in self._api_keys:
            return False
        self._api_keys[key_id] = replace(self._api_keys[key_id], policy=policy)
        return True

    async def revoke_api_key(self, key_id: str) -> bool:
        return self._api_keys.pop(key_id, None) is not None

    # --- their use --------------------------------------------------------------------------------

    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        counters = self._key_counters[key_id]
        return counters.reserve(charges, slot, now=self._clock(), is_taken=self._is_taken)

    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        counters = self._key_counters.get(key_id)
        return counters is not None and counters.settle(tenant, response_id, charges)

    # --- traces, shared values --------------------------------------------------------------------

    async def save_trace(self, lease: Lease, trace: bytes) -> bool:
        record = self._find_leased(lease)
        if record is not None:
            self._bytes[lease.tenant] += len(trace) - len(record.trace or b"")
            record.trace = trace
        return record is not None

    async def get_trace(self, tenant: str, response_id: str) -> bytes | None:
        return self._find_response(tenant, response_id).trace

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        if self._shared_values.get(name) in (None, expected):
            self._shared_values[name] = value
        return self._shared_values[name]

    # --- lookups and changes ----------------------------------------------------------------------

    def _is_alive(self, owner: str | None) -> bool:
        return self._alive_until.get(owner or "", -math.inf) > self._steady()

    def _find_leased(self, lease: Lease) -> ResponseRecord | None:
        """Return the response that the lease is for; None if the lease is void."""
        record = self._unfinished.get((lease.tenant, lease.response_id))
        if record is None or record.owner is None or record.epoch != lease.epoch:
            return None
        return record

    def _append_events(self, record: ResponseRecord, events: EventChunk) -> None:
        if record.log is None:
            raise StoreError("This response has no log.")
        if not record.log.has(events):
            record.log.append(events)
            self._bytes[record.tenant] += len(events.body)

    def _is_taken(self, slot: RunSlot) -> bool:
        key = (slot.tenant, slot.response_id)
        return key in self._unfinished if key in self._records else self._is_alive(slot.owner)

    def _is_claimed(self, tenant: str, record: ConversationRecord) -> bool:
        claim = record.claim
        if claim is None:
            return False
        return self._is_alive(claim.owner) or (tenant, claim.response_id) in self._unfinished

    def _is_key_free(self, tenant: str, reservation: KeyReservation) -> bool:
        if reservation.expires_at <= self._clock():
            return True
        exists = (tenant, reservation.response_id) in self._records
        return not exists and not self._is_alive(reservation.owner)

    def _free_key(self, tenant: str, response_id: str) -> None:
        """Free the Idempotency-Key that is reserved for the response, if any."""
        key = self._reserved_keys.pop((tenant, response_id), None)
        if key is not None:
            del self._reservations[tenant, key]

    def _release(
        self, tenant: str, conversation_id: str, response_id: str, items: Sequence[StoredItem]
    ) -> None:
        record = self._conversations.get((tenant, conversation_id))
        if record is not None and record.claim and record.claim.response_id == response_id:
            record.claim = None
            self._append_items(tenant, record, items)

    def _find_conversation(self, tenant: str, conversation_id: str) -> ConversationRecord:
        try:
            return self._conversations[tenant, conversation_id]
        except KeyError:
            raise conversation_not_found(conversation_id) from None

    def _conversation_of(self, tenant: str, response: Response) -> ConversationRecord | None:
        ref = response.conversation
        return self._conversations.get((tenant, ref.id)) if ref else None

    def _append_items(
        self, tenant: str, record: ConversationRecord, items: Sequence[StoredItem]
    ) -> None:
        record.append(items)
        self._items.add(tenant, items)

    def _evict_old_conversations(self) -> None:
        while len(self._conversations) > self._keep:
            records = self._conversations.items()
            free = (key for key, record in records if not self._is_claimed(key[0], record))
            oldest = next(free, None)
            if oldest is None:
                return
            self._delete_conversation(*oldest)

    def _delete_conversation(self, tenant: str, conversation_id: str) -> None:
        record = self._conversations.remove((tenant, conversation_id))
        self._items.remove(tenant, record.items.values())
        record.items.clear()

    def _find_response(self, tenant: str, response_id: str) -> ResponseRecord:
        try:
            return self._records[tenant, response_id]
        except KeyError:
            raise response_not_found(response_id) from None

    def _evict_old_responses(self) -> None:
        while len(self._records) > self._keep:
            oldest = next((key for key in self._records if key not in self._unfinished), None)
            if oldest is None:
                return
            self._delete_response(*oldest)

    def _delete_response(self, tenant: str, response_id: str) -> None:
        record: ResponseRecord | None = self._records.remove((tenant, response_id))
        assert record is not None
        self._unfinished.pop((tenant, response_id), None)
        self._free_key(tenant, response_id)
        self._delete_log(record)
        self._response_counts[tenant] -= 1
        self._bytes[tenant] -= len(record.body) + len(record.trace or b"")
        record.clear()
        claim = record.conversation.claim if record.conversation else None
        if record.conversation and claim and claim.response_id == response_id:
            record.conversation.claim = None
        # Delete the items of this response and of its deleted ancestors that no response continues.
        while record is not None and record.is_deleted and not record.child_count:
            self._items.remove(tenant, (*record.input, *record.output))
            record = record.parent
            if record is not None:
                record.child_count -= 1

    def _expired_deletions(self, now: float, keep_events_s: float) -> Iterator[Callable[[], None]]:
        """Yield a function to delete each expired response, log and Idempotency-Key."""
        for key, record in self._records.items():
            if key in self._unfinished:
                continue
            if _has_passed(record.expires_at, now):
                yield partial(self._delete_response, *key)
            elif record.log and _has_passed(record.finished_at, now - keep_events_s):
                yield partial(self._delete_log, record)
        for (tenant, _), reservation in self._reservations.items():
            if _has_passed(reservation.expires_at, now):
                yield partial(self._free_key, tenant, reservation.response_id)

    def _delete_log(self, record: ResponseRecord) -> None:
        self._bytes[record.tenant] -= record.log.size if record.log else 0
        record.log = None
        record.wake_waiters()


def _has_passed(at: float | None, now: float) -> bool:
    return at is not None and at <= now
