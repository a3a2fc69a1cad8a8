"""All that is kept: responses, runs, idempotency keys, webhooks to deliver, API keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Raw, Struct

from antiphon.domain.conversation import Conversation
from antiphon.domain.response import Response


class StoredItem(Struct, frozen=True, kw_only=True):
    """An item as the client may see it: `raw` is its whole JSON, unknown fields included.

    A store keeps it byte for byte.
    """

    id: str
    raw: Raw


class EventChunk(Struct, frozen=True, kw_only=True):
    """Events of one run that follow each other, written down (event_chunks.py).

    The first has the number `first`; there are `count` of them. A store keeps `body`, which may
    hold any bytes, as it is.
    """

    first: int
    count: int
    body: bytes


class NewRun(Struct, frozen=True, kw_only=True):
    """How a new response is run.

    `owner` is the server that runs it from now on, under epoch 1; None leaves it waiting for one
    (epoch 0). `job` is all that any server needs to begin it; None where only its owner can.
    `events` are the first of its log, where the store keeps that. `key` is the Idempotency-Key that
    the response was given, if any.
    """

    owner: str | None = None
    job: bytes | None = None
    events: EventChunk | None = None
    key: str | None = None


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response as it is kept. `input` are the items that its request added to the chain.

    `expires_at` (seconds since the epoch) is when it may be swept; None keeps it.
    """

    response: Response
    input: Sequence[StoredItem] = ()
    expires_at: float | None = None
    run: NewRun = NewRun()


class Lease(Struct, frozen=True, kw_only=True):
    """The right to write a run that has an owner: void once the run is over, deleted, given back,
    or taken under a higher epoch. Nobody has one for a run that waits.

    There is no other fence: whoever was stopped and wakes up finds that nothing of it is written.
    """

    tenant: str
    response_id: str
    epoch: int = 1


class WebhookDelivery(Struct, frozen=True, kw_only=True):
    """A webhook to deliver: `id` is the same at each attempt; `endpoint` names its receiver."""

    id: str
    tenant: str
    endpoint: str
    body: bytes
    attempts: int = 0


class StorageUsage(Struct, frozen=True, kw_only=True):
    """What a tenant has in the store: `bytes` are those of bodies, items and logs, about.

    `waiting` are the runs that no server has been given yet, or that one has given back.
    """

    responses: int = 0
    bytes: int = 0
    waiting: int = 0


class ResponseStore(Protocol):
    """Responses, conversations and their items, by tenant. What was written is read at once, from
    any process.

    Items are kept once, for the response that brought them and for its conversation alike. Every id
    of another tenant is unknown; two tenants may use the same ids. An id, and the name of a tenant,
    is any text and taken literally. Calls may run at the same time: one that fails or is cancelled
    affects no other. Raises: StoreError, from any method, when the store fails.
    """

    async def start(self) -> None:
        """Open, migrate, prove that a write can be read back. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def check(self) -> None:
        """Raises: StoreError when nothing can be written now."""

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        """Keep a new response with its run's job and first events; its status is not terminal yet.

        It continues `previous_response_id` if that is another response of the tenant that is kept
        now, and nothing otherwise. Where it names a conversation it was given what that has now.
        Its input may be empty, and hold one item twice. Raises, and nothing is kept: StoreError if
        the tenant has a response of this id; IdempotencyKeyInUse if the response has lost the
        Idempotency-Key that it was given.
        """

    async def finish(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        """Set a terminal state with its output, the last events of a log that is kept here, and the
        notices of it, all at once, once: False, and nothing written, if the lease is void. The
        output takes the place of what the response had so far. The job is forgotten. Raises:
        StoreError, and nothing is written, for events that `append` refuses.

        A conversation that the response has claimed is free at the same moment, with the response's
        input and output at its end unless the response failed (`Response.leaves_items`).
        """

    async def get(self, tenant: str, response_id: str) -> Response:
        """Raises: NotFound."""

    async def input_items(self, tenant: str, response_id: str) -> list[StoredItem]:
        """Return all that the model was given: the chain's inputs and outputs, then this input.

        Of a conversation, what it had then and still has. Raises: NotFound.
        """

    async def context(self, tenant: str, response_id: str) -> list[StoredItem]:
        """Return `input_items` followed by the response's output. Raises: NotFound."""

    async def item(self, tenant: str, item_id: str) -> StoredItem:
        """Return the newest item of that id, whoever brought it. Raises: NotFound.

        It is found until the last response and conversation that keep it are gone.
        """

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget the response, its log, its job and its Idempotency-Key.

        Responses that continue it and its conversation keep its items; its notices, which are not
        its content, are still delivered. A conversation that it has claimed is free again. Raises:
        NotFound.
        """

    async def usage(self, tenant: str) -> StorageUsage:
        """Return what the tenant has here."""

    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        """Forget what is past its time: responses, as `delete` does; logs of runs that have been
        over for `keep_events_s`; Idempotency-Keys. Return how many, `limit` at the most: 0 where
        nothing is left to forget.

        No response that runs, and none that was made in a conversation, is past its time.
        """

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        """Keep a new conversation, which begins with these items.

        Raises: StoreError, and nothing is kept, if the tenant has a conversation of this id.
        """

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises: NotFound."""

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        """Replace the metadata and return the conversation. Raises: NotFound."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        """Forget the conversation and its items; responses keep those they brought.

        Raises: NotFound.
        """

    async def conversation_items(self, tenant: str, conversation_id: str) -> list[StoredItem]:
        """Return the items in order. Raises: NotFound."""

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        """Put items at the end. Raises: NotFound; ConversationLocked while it is claimed."""

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        """Take all items of this id out of this conversation alone. Raises: NotFound."""

    async def claim(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        """Keep the conversation for this response alone, until it is finished or lets it go.

        Of several that ask, one gets it. A claim whose owner is dead (see RunStore) counts only as
        long as the response that has it is stored and unfinished. Raises: NotFound;
        ConversationLocked.
        """

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        """Free the conversation with `items` at its end, if this response has claimed it; else do
        nothing, also where there is no such conversation.

        For responses that are not kept, and for those that came to nothing.
        """


class LeasedRun(Struct, frozen=True, kw_only=True):
    """A run under a new lease: `response` is as it was created, `job` as it was given."""

    lease: Lease
    response: Response
    job: bytes | None = None


class LogSlice(Struct, frozen=True, kw_only=True):
    """A piece of a log. `ends` says that no chunk follows these."""

    chunks: Sequence[EventChunk]
    ends: bool


LOG_READ_BYTES = 4 * 2**20
"""What is read of a log at once, where nobody asks for less."""


class RunStore(Protocol):
    """Who runs what: each unfinished response is waiting, or owned by one server.

    An owner is a name that a server has for one life. It is alive for the seconds that its last
    `beat` gave it, by a clock that nobody sets back or forward. Raises: StoreError.
    """

    def beat(self, owner: str, ttl_s: float) -> None:
        """Be alive for so many seconds more.

        Blocks: it is called from a thread of its own, also while the event loop is busy.
        """

    async def leave(self, owner: str) -> None:
        """Be dead from now on: what the owner still has may be taken at once."""

    async def lease_runs(self, owner: str, *, limit: int, waiting: bool = True) -> list[LeasedRun]:
        """Take runs that wait or whose owner is dead, oldest first, each under a higher epoch.

        Without `waiting`, those whose owner is dead alone.

        Of several that ask for it, one gets a run. What the asker has already it does not get
        again, be it dead itself: it may have been cut off from the store, and have it at work.
        """

    async def take_over(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        """Take a run from whoever has it, alive or not, under a higher epoch; None if it is over.

        Of several that ask, each has it in turn, and the last keeps it. Raises: NotFound.
        """

    async def give_back(self, lease: Lease) -> bool:
        """Let the run wait for another owner: False if the lease is void."""

    async def held_leases(self, owner: str) -> list[Lease]:
        """Return the leases that the owner has; of those it had, the others are void."""

    async def append(self, lease: Lease, events: EventChunk) -> bool:
        """Add events to a log that began when its response was created; it has no gaps.

        False, and nothing written, if the lease is void. The same chunk again changes nothing and
        is True. Raises: StoreError, and nothing is written, for any other chunk whose first number
        is not the one after the last, and where no log is kept.
        """

    async def events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        """Return chunks from the one with number `after + 1` in it on: about `limit_bytes` at most,
        but one chunk at least where there is any.

        Nothing is returned twice where `after` is the last number that was. A log ends when its run
        is over. Raises: NotFound where there is no such response, or no log of it here.
        """

    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        """Return when a log may have more than number `after`, or has ended, or is gone.

        Not later than after `limit_s`; nor, for what another process wrote, much later than 100 ms.
        Never raises NotFound: what is unknown is gone.
        """


class IdempotencyRecord(Struct, frozen=True, kw_only=True):
    """What an Idempotency-Key stands for. `exists` says whether that response is stored yet."""

    response_id: str
    fingerprint: bytes
    exists: bool


class IdempotencyStore(Protocol):
    """Idempotency-Keys: each has one response, for as long as that is stored, or is being made.

    A key is taken literally, upper and lower case apart; two tenants may use the same key.
    Raises: StoreError.
    """

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
        """Give the key to this response if it is free, and return what has it then.

        It is free again when its response is deleted, when it has expired (at the latest once it
        is swept), and when its owner died before the response was created; `create` sees to it that
        the response does not come after all. Whoever has it may ask again.
        """

    async def unreserve(self, tenant: str, key: str, response_id: str) -> None:
        """Free the key again, if this response has it and is not stored: it came to nothing."""


class Outbox(Protocol):
    """Notices that `finish` left, until they are delivered or given up. Raises: StoreError."""

    async def claim_due(self, *, limit: int, claim_s: float) -> list[WebhookDelivery]:
        """Return notices whose time has come, longest due first; a new one's has come at once.

        Of several that ask, one gets a notice. Nobody is given it again for `claim_s`; then it is
        due once more. `attempts` counts the times that this returned the notice before. A notice
        does not depend on its response, which may be deleted or swept.
        """

    async def delay(self, delivery_id: str, seconds: float) -> None:
        """Make it due after so many seconds, counted from now; it may be gone already."""

    async def remove(self, delivery_id: str) -> None:
        """Forget it; it may be gone already."""


class ApiKey(Struct, frozen=True, kw_only=True):
    """`hash` is the SHA-256 of the key, which itself is nowhere."""

    id: str
    name: str
    tenant: str
    hash: bytes
    created_at: int


class KeyStore(Protocol):
    """The API keys of all tenants. Raises: StoreError."""

    async def add_key(self, key: ApiKey) -> None:
        """Keep a new key. Raises: StoreError if there is one of this id, or of this hash."""

    async def keys(self) -> list[ApiKey]:
        """Return all keys, oldest first; of one age, in the order in which they were added."""

    async def key(self, hash: bytes) -> ApiKey | None:
        """Return the key of this hash, if there is one."""

    async def revoke_key(self, key_id: str) -> bool:
        """Forget a key: False if there is none of this id."""


class SharedValues(Protocol):
    """What all servers of a store have in common, by name, for as long as there is the store.

    Raises: StoreError.
    """

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        """Keep `value` if there is none of this name, or it is `expected`; return what is kept.

        A value may be any bytes, and empty. Of several that ask at once, all are told the same
        value.
        """


class Store(ResponseStore, RunStore, IdempotencyStore, Outbox, KeyStore, SharedValues, Protocol):
    """All that is kept. One class, since much of it is written in one transaction."""
