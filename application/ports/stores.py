"""The persistent state: responses, runs, idempotency keys, webhooks to deliver, API keys
and their use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from msgspec import Raw, Struct

from antiphon.domain.conversation import Conversation
from antiphon.domain.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.response import Response
from antiphon.domain.response_lists import ResponseSummary


class StoredItem(Struct, frozen=True, kw_only=True, gc=False):
    """An item as clients see it: `raw` is its complete JSON, unknown fields included.

    A store does not change a byte of it.
    """

    id: str
    raw: Raw


class StorePageQuery(Struct, frozen=True, kw_only=True):
    """Up to `limit` entries after the one with the id `after`, by when they were created."""

    limit: int
    after: str | None = None
    is_descending: bool = False


class EventChunk(Struct, frozen=True, kw_only=True):
    """`count` consecutive events of one run, encoded (event_chunks.py).

    The first has the number `first`. `body` may be any bytes, which a store does not change.
    """

    first: int
    count: int
    body: bytes


class NewRun(Struct, frozen=True, kw_only=True):
    """How a new response runs.

    `owner` is the server that runs it, under epoch 1; None lets it wait for a server (epoch 0).
    `job` is what any server needs to start it; None if only its owner can. `events` are the first
    of its log, if the log is in the store. `key` is the response's Idempotency-Key, if it has one.
    """

    owner: str | None = None
    job: bytes | None = None
    events: EventChunk | None = None
    key: str | None = None


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response to store. `input` are the items that its request added to the chain.

    After `expires_at` (seconds since the epoch), it may be swept; None means never.
    """

    response: Response
    input: Sequence[StoredItem] = ()
    expires_at: float | None = None
    run: NewRun = NewRun()


class Lease(Struct, frozen=True, kw_only=True):
    """The right of a run's owner to write it. A waiting run has no lease.

    A lease is void after the run has ended, was deleted, given back, or leased under a higher
    epoch. It is the only fence: the writes of a server that resumes after a pause have no effect.
    """

    tenant: str
    response_id: str
    epoch: int = 1


class WebhookDelivery(Struct, frozen=True, kw_only=True):
    """A webhook to deliver. `id` is the same for each attempt; `endpoint` names the receiver."""

    id: str
    tenant: str
    endpoint: str
    body: bytes
    attempts: int = 0


class StorageUsage(Struct, frozen=True, kw_only=True):
    """A tenant's use of the store: `bytes` is the approximate size of bodies, items and logs.

    `waiting` counts the runs without an owner: not leased yet, or given back.
    """

    responses: int = 0
    bytes: int = 0
    waiting: int = 0


class ResponseStore(Protocol):
    """Responses, conversations and their items, by tenant. In every process, reads return all
    writes that have finished.

    A response and its conversation share one copy of an item. Ids of other tenants are unknown; two
    tenants may use the same ids. Ids and names of tenants may be any text and are taken literally.
    Calls may run concurrently; one that fails or is cancelled affects no other. Raises: StoreError,
    from any method, when the store fails.
    """

    @property
    def outlives_server(self) -> bool:
        """Whether what it has is still there when this server is not: another may go on then."""
        return True

    @abstractmethod
    async def start(self) -> None:
        """Open, migrate, and check that a write can be read back. Raises: SettingsError."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def check(self) -> None:
        """Raises: StoreError when nothing can be written now."""

    @abstractmethod
    async def create(self, tenant: str, stored: StoredResponse) -> None:
        """Store a new response with its run's job and first events; its status is not terminal yet.

        It continues `previous_response_id` if that is another response that the tenant has now, and
        nothing otherwise. In a conversation, its input is what the conversation has now. Its own
        `input` may be empty, or contain an item twice. Raises, and stores nothing: StoreError if
        the tenant has a response with this id; IdempotencyKeyInUse if the response has lost its
        Idempotency-Key.
        """

    @abstractmethod
    async def finish(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        """Write a terminal state with its output, the last events of the log if the store has it,
        and the webhook deliveries, in one transaction, and delete the job.

        Return False, and write nothing, if the lease is void: a run ends once. The output replaces
        earlier output. Raises: StoreError, and writes nothing, for events that `append` rejects.

        The same transaction frees a conversation that the response has claimed, and appends the
        response's input and output to it unless the response failed (`Response.keeps_items`).
        """

    @abstractmethod
    async def get(self, tenant: str, response_id: str) -> Response:
        """Raises: NotFound."""

    @abstractmethod
    async def list_responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        """Return a page of the tenant's responses, with the state that `get` has.

        Long responses may not fill the memory. Raises: NotFound if there is no `after`.
        """

    @abstractmethod
    async def input_items(
        self, tenant: str, response_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        """Return the input of the model: the chain's inputs and outputs, then this input.

        From a conversation, the items that it had then and still has. With a `query`, only that
        page of them: it costs what it has, however long the history is. Raises: NotFound;
        NotInList if there is no `after`.
        """

    @abstractmethod
    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        """Return all `input_items` followed by the response's output. Raises: NotFound."""

    @abstractmethod
    async def item(self, tenant: str, item_id: str) -> StoredItem:
        """Return the newest item with this id, from any response or conversation. Raises: NotFound.

        It exists until the last response and conversation that have it are deleted.
        """

    @abstractmethod
    async def delete(self, tenant: str, response_id: str) -> None:
        """Delete the response, its log, its job and its Idempotency-Key.

        Its conversation, and responses that continue it, keep its items. Its webhooks are still
        delivered. A conversation that it has claimed becomes free. Raises: NotFound.
        """

    @abstractmethod
    async def usage(self, tenant: str) -> StorageUsage: ...

    @abstractmethod
    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        """Delete expired responses as `delete` does, the logs of runs that ended `keep_events_s`
        ago, and expired Idempotency-Keys.

        Delete `limit` of them at most, and return their number; 0 when nothing is left. A running
        response does not expire, nor does a response in a conversation.
        """

    @abstractmethod
    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        """Store a new conversation with these items.

        Raises: StoreError, and stores nothing, if the tenant has a conversation with this id.
        """

    @abstractmethod
    async def list_conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        """Return a page of the tenant's conversations. Raises: NotFound if there is no `after`."""

    @abstractmethod
    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises: NotFound."""

    @abstractmethod
    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        """Replace the metadata and return the conversation. Raises: NotFound."""

    @abstractmethod
    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        """Delete the conversation and its items; responses keep their own. Raises: NotFound."""

    @abstractmethod
    async def conversation_items(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        """Return the items in order, or one page of them as `input_items` does.

        Raises: NotFound; NotInList if there is no `after`.
        """

    @abstractmethod
    async def conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> StoredItem:
        """Return the last item of the conversation that has this id. Raises: NotFound."""

    @abstractmethod
    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        """Append items. Raises: NotFound; ConversationLocked while the conversation is claimed."""

    @abstractmethod
    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        """Remove all items with this id from this conversation only. Raises: NotFound."""

    @abstractmethod
    async def claim(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        """Lock the conversation for this response, until the response ends or releases it.

        Only one of several concurrent callers gets it. A claim whose owner is dead (see RunStore)
        is valid only while its response is stored and unfinished. Raises: NotFound;
        ConversationLocked.
        """

    @abstractmethod
    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        """Append `items` and free the conversation, if this response has claimed it.

        Otherwise do nothing, also if the conversation does not exist. For unstored responses, and
        for responses that were never created.
        """


class LeasedRun(Struct, frozen=True, kw_only=True):
    """A run under a new lease, with `response` and `job` as they were created."""

    lease: Lease
    response: Response
    job: bytes | None = None


class LogSlice(Struct, frozen=True, kw_only=True):
    """A part of a log. `ends`: no chunk follows these."""

    chunks: Sequence[EventChunk]
    ends: bool


NO_RUNS: Mapping[str, int] = MappingProxyType({})

LOG_READ_BYTES = 4 * 2**20
"""The default size of a read from a log."""


class RunStore(Protocol):
    """The runs of all servers: each unfinished response waits, or one server owns it.

    An owner is a server's name from one start to its stop. It is alive for the seconds of its last
    `beat`, by a clock that is never set. Raises: StoreError.
    """

    @abstractmethod
    def beat(self, owner: str, ttl_s: float) -> None:
        """Keep the owner alive for `ttl_s` from now.

        Blocks: the caller is a separate thread, so that it runs while the event loop is busy.
        """

    @abstractmethod
    async def leave(self, owner: str) -> None:
        """Declare the owner dead: other servers may lease its runs immediately."""

    @abstractmethod
    async def lease_runs(
        self,
        owner: str,
        *,
        limit: int,
        waiting: bool = True,
        held: Mapping[str, int] = NO_RUNS,
        per_tenant: int | None = None,
    ) -> list[LeasedRun]:
        """Lease waiting runs, and runs whose owner is dead, under higher epochs. Return the oldest
        first.

        Tenants take turns: in each round, each tenant gets its oldest run. A tenant that has runs
        already (`held`: their number, by tenant) joins as many rounds later, and gets none after
        round `per_tenant`. Without `waiting`, only runs whose owner is dead. Only one of several
        concurrent callers gets a run. An owner never gets its own runs, even if it is dead: it may
        only have lost its connection to the store and still be running them.
        """

    @abstractmethod
    async def count_waiting(self) -> int:
        """Return how many runs of all tenants wait for a server."""

    @abstractmethod
    async def take_over(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        """Lease a run under a higher epoch, even if its owner is alive; None if it has ended.

        Several concurrent callers get it one after another, and the last one keeps it. Raises:
        NotFound.
        """

    @abstractmethod
    async def give_back(self, lease: Lease) -> bool:
        """Let the run wait for another owner. Return False if the lease is void."""

    @abstractmethod
    async def held_leases(self, owner: str) -> list[Lease]:
        """Return the owner's valid leases."""

    @abstractmethod
    async def append(self, lease: Lease, events: EventChunk) -> bool:
        """Add events to a log that was created with its response; a log has no gaps.

        Return False, and write nothing, if the lease is void. Adding the same chunk again changes
        nothing and returns True. Raises: StoreError, and writes nothing, for any other chunk whose
        first number does not follow the last one, and for a response without a log.
        """

    @abstractmethod
    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        """Return the chunks from the one with number `after + 1` on: about `limit_bytes`, but at
        least one chunk if there is any.

        If `after` is the last number of the previous call, nothing is returned twice. A log ends
        when its run has ended. Raises: NotFound for an unknown response, or one without a log here.
        """

    @abstractmethod
    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        """Return when the log may have events after number `after`, has ended, or is gone.

        Return after `limit_s` at the latest, and not much later than 100 ms after another process
        wrote an event. Never raises NotFound: an unknown log is gone.
        """


class IdempotencyRecord(Struct, frozen=True, kw_only=True):
    """The response that has an Idempotency-Key; `exists` says whether it is stored yet."""

    response_id: str
    fingerprint: bytes
    exists: bool


class IdempotencyStore(Protocol):
    """Idempotency-Keys: a key belongs to one response while that is being created or is stored.

    A key is taken literally and is case-sensitive; two tenants may use the same key.
    Raises: StoreError.
    """

    @abstractmethod
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
        """Reserve the key for this response if it is free, and return the record that has it then.

        A key becomes free when its response is deleted, when it has expired (at the latest when it
        is swept), and when its owner dies before the response was created; then `create` rejects
        the response. The response that has the key may reserve it again.
        """

    @abstractmethod
    async def unreserve(self, tenant: str, key: str, response_id: str) -> None:
        """Free the key, if this response has it and is not stored."""


class Outbox(Protocol):
    """Webhook deliveries from `finish`, until they succeed or are given up. Raises: StoreError."""

    @abstractmethod
    async def claim_due(self, *, limit: int, claim_s: float) -> list[WebhookDelivery]:
        """Claim and return due deliveries, longest due first. A new delivery is due immediately.

        Only one of several concurrent callers gets a delivery. After `claim_s`, it is due again.
        `attempts` counts the earlier claims. A delivery does not depend on its response, which may
        be deleted or swept.
        """

    @abstractmethod
    async def delay(self, delivery_id: str, seconds: float) -> None:
        """Make it due `seconds` from now; it may be gone already."""

    @abstractmethod
    async def remove(self, delivery_id: str) -> None:
        """Delete it; it may be gone already."""


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key. `hash` is its SHA-256; the key itself is not stored."""

    id: str
    name: str
    tenant: str
    hash: bytes
    created_at: int
    policy: KeyPolicy = FULL_ACCESS


class KeyStore(Protocol):
    """The API keys of all tenants. Raises: StoreError."""

    @abstractmethod
    async def add_key(self, key: ApiKey) -> None:
        """Store a new key. Raises: StoreError if this id or this hash exists."""

    @abstractmethod
    async def keys(self) -> list[ApiKey]:
        """Return all keys, oldest first; keys of the same age in the order of their addition."""

    @abstractmethod
    async def key(self, hash: bytes) -> ApiKey | None:
        """Return the key with this hash, or None."""

    @abstractmethod
    async def update_key(self, key_id: str, policy: KeyPolicy) -> bool:
        """Replace a key's policy. Return False if this id does not exist."""

    @abstractmethod
    async def revoke_key(self, key_id: str) -> bool:
        """Delete a key. Return False if this id does not exist."""


class Charge(Struct, frozen=True, kw_only=True):
    """An amount to add to a key's counter `name` in the window that starts at `start`.

    `limit` is the most that the counter may have then; None means no limit. The counter may be
    deleted after `expires_at`. Times are in seconds since the epoch.
    """

    name: str
    start: int
    amount: int
    expires_at: int
    limit: int | None = None

    def fits(self, count: int) -> bool:
        """Return whether the charge may be added to a counter with this count."""
        return not self.amount or self.limit is None or count + self.amount <= self.limit


class RunSlot(Struct, frozen=True, kw_only=True):
    """The place of a response among the runs of a key, which may have `limit` of them at a time.

    It is taken until `settle_usage`. Without that, it is free once its response has ended in the
    store; or, if its response is not stored, once its owner is dead (see RunStore).
    """

    tenant: str
    response_id: str
    owner: str
    limit: int | None = None

    def fits(self, taken: int) -> bool:
        """Return whether the slot may be taken beside so many others."""
        return self.limit is None or taken < self.limit


class KeyUsage(Struct, frozen=True, kw_only=True):
    """A key's counters, in the order of the charges, and its number of taken slots."""

    accepted: bool
    counts: Sequence[int]
    runs: int = 0


class UsageStore(Protocol):
    """What each API key has used, and the slots of its runs. Raises: StoreError."""

    @abstractmethod
    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        """Add all charges and take the slot; or nothing at all, if a charge with an amount or the
        slot would exceed its limit.

        Return the usage after that. Concurrent callers never exceed a limit together, on any number
        of servers. An amount of 0 only reads. A slot that the response has already is not taken
        twice.
        """

    @abstractmethod
    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        """Free the response's slot and add the charges, whatever their limits.

        Return False, and add nothing, if the response has no slot: so a run counts once. An amount
        may be negative; a counter never falls below 0.
        """


class SharedValues(Protocol):
    """Named values that all servers of a store share, as long as the store exists.

    Raises: StoreError.
    """

    @abstractmethod
    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        """Set `value` if the name has no value, or has `expected`; return the name's value.

        A value may be any bytes, also empty. Concurrent callers all get the same value.
        """


class TraceStore(Protocol):
    """Traces of runs, by response: each is what the model read and wrote, sealed by the caller.

    A trace counts in `StorageUsage.bytes`, and is deleted and swept with its response.
    Raises: StoreError.
    """

    @abstractmethod
    async def save_trace(self, lease: Lease, trace: bytes) -> bool:
        """Store the trace of the response in place of an earlier one; it may be any bytes.

        Return False, and write nothing, if the lease is void.
        """

    @abstractmethod
    async def trace(self, tenant: str, response_id: str) -> bytes | None:
        """Return the trace, or None if the response has none. Raises: NotFound."""


class Store(
    ResponseStore,
    RunStore,
    IdempotencyStore,
    Outbox,
    KeyStore,
    UsageStore,
    SharedValues,
    TraceStore,
    Protocol,
):
    """The whole store. It is one class because many operations write several parts in one
    transaction."""
