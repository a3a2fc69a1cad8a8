"""The records of the memory store: responses, conversations, logs, keys, webhook deliveries."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.stores.not_found import item_not_found
from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
from antiphon.application.ports import (
    EventChunk,
    Lease,
    LeasedRun,
    StoredItem,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.domain.errors import NotFound, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import Response


class Claim(Struct, frozen=True):
    """A response's exclusive use of a conversation."""

    response_id: str
    owner: str


class ConversationRecord:
    """A conversation with its items by place. A place is never reused: later items have higher."""

    __slots__ = ("claim", "conversation", "items", "next_place")

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.items: dict[int, StoredItem] = {}
        self.claim: Claim | None = None
        self.next_place = 0

    def find(self, item_id: str) -> StoredItem:
        """Return the last item with this id. Raises: NotFound."""
        for item in reversed(self.items.values()):
            if item.id == item_id:
                return item
        raise item_not_found(item_id, self.conversation.id)

    def remove(self, item_id: str) -> list[StoredItem]:
        """Remove all items with this id, and return them. Raises: NotFound."""
        places = [place for place, item in self.items.items() if item.id == item_id]
        if not places:
            raise item_not_found(item_id, self.conversation.id)
        return [self.items.pop(place) for place in places]

    def append(self, items: Sequence[StoredItem]) -> None:
        self.items.update(enumerate(items, self.next_place))
        self.next_place += len(items)


class ItemIndex:
    """The items of all responses and conversations, by id: an item of both is there twice.

    `sizes` counts the bytes of each tenant.
    """

    def __init__(self, sizes: Counter[str]) -> None:
        self._sizes = sizes
        self._items: dict[tuple[str, str], list[StoredItem]] = {}

    def add(self, tenant: str, items: Iterable[StoredItem]) -> None:
        for item in items:
            self._sizes[tenant] += len(item.raw)
            if item.id:
                self._items.setdefault((tenant, item.id), []).append(item)

    def remove(self, tenant: str, items: Iterable[StoredItem]) -> None:
        for item in items:
            self._sizes[tenant] -= len(item.raw)
            same_id = self._items.get((tenant, item.id), [])
            matches = (index for index, other in enumerate(same_id) if other is item)
            if (index := next(matches, None)) is not None:
                del same_id[index]
            if not same_id:
                self._items.pop((tenant, item.id), None)

    def find_newest(self, tenant: str, item_id: str) -> StoredItem:
        """Return the newest item with this id. Raises: NotFound."""
        items = self._items.get((tenant, item_id))
        if not items:
            raise NotFound(f"There is no item {item_id!r}.")
        return items[-1]


class ChunkLog:
    """The log of one run: event chunks without gaps."""

    __slots__ = ("_firsts", "chunks", "size")

    def __init__(self, first: EventChunk) -> None:
        self.chunks = [first]
        self._firsts = [first.first]
        self.size = len(first.body)

    def has(self, chunk: EventChunk) -> bool:
        """Return whether the log already has the chunk.

        Raises: StoreError if it does not, and the chunk is not the next one either.
        """
        last = self.chunks[-1]
        if chunk.first == last.first + last.count:
            return False
        if self.chunks[self._index_of(chunk.first)] == chunk:
            return True
        raise StoreError(
            f"Events from number {chunk.first} on do not follow {last.count} from {last.first} on."
        )

    def append(self, chunk: EventChunk) -> None:
        self.chunks.append(chunk)
        self._firsts.append(chunk.first)
        self.size += len(chunk.body)

    def read(self, after: int, limit_bytes: int) -> list[EventChunk]:
        """Return chunks, starting with the one that contains event `after + 1`.

        At least one if there is any, then as many as fit in `limit_bytes`.
        """
        chunks: list[EventChunk] = []
        if after >= self.last_number:
            return chunks
        size = 0
        for chunk in islice(self.chunks, self._index_of(after + 1), None):
            size += len(chunk.body)
            if chunks and size > limit_bytes:
                break
            chunks.append(chunk)
        return chunks

    @property
    def last_number(self) -> int:
        """The number of the last event."""
        return self.chunks[-1].first + self.chunks[-1].count - 1

    def _index_of(self, number: int) -> int:
        return max(bisect_right(self._firsts, number) - 1, 0)


class ResponseRecord:
    """A response with its run, and its position in the tree of responses that continue each other.

    `conversation` is the one the response was created in. Its items below `conversation_end` are
    part of the response's context. `child_count` is the number of responses that continue this one.
    """

    __slots__ = (
        "body",
        "child_count",
        "conversation",
        "conversation_end",
        "epoch",
        "expires_at",
        "finished_at",
        "input",
        "is_deleted",
        "job",
        "log",
        "output",
        "owner",
        "parent",
        "tenant",
        "trace",
        "waiters",
    )

    def __init__(
        self,
        tenant: str,
        stored: StoredResponse,
        parent: ResponseRecord | None,
        conversation: ConversationRecord | None,
    ) -> None:
        self.tenant = tenant
        self.conversation = conversation
        self.conversation_end = conversation.next_place if conversation else 0
        self.body = body_of(stored.response)
        self.input = copy_items(stored.input)
        self.output = output_of(stored.response)
        self.parent = parent
        self.is_deleted = False
        self.child_count = 0
        self.owner = stored.run.owner
        self.epoch = 0 if self.owner is None else 1
        self.job = stored.run.job
        self.log = None if stored.run.events is None else ChunkLog(stored.run.events)
        self.expires_at = None if stored.response.conversation else stored.expires_at
        self.finished_at: float | None = None
        self.trace: bytes | None = None
        self.waiters: list[asyncio.Future[None]] = []

    def clear(self) -> None:
        """Delete the response itself; its items stay for those that continue it."""
        self.is_deleted, self.body, self.job, self.trace = True, b"", None, None

    def response(self) -> Response:
        return response_from(self.body, [bytes(item.raw) for item in self.output])

    def lease(self, owner: str) -> LeasedRun:
        """Give the run to this owner, under a higher epoch."""
        self.owner = owner
        self.epoch += 1
        response = self.response()
        lease = Lease(tenant=self.tenant, response_id=response.id, epoch=self.epoch)
        return LeasedRun(lease=lease, response=response, job=self.job)

    def conversation_items(self) -> list[StoredItem]:
        """Return the items that the conversation had at creation and still has."""
        items = self.conversation.items if self.conversation else {}
        return [item for place, item in items.items() if place < self.conversation_end]

    def input_parts(self) -> list[Sequence[StoredItem]]:
        """Return the parts of the model's input, oldest first."""
        parts: list[Sequence[StoredItem]] = []
        for ancestor in self.ancestors():
            parts += [ancestor.conversation_items(), ancestor.input, ancestor.output]
        return [*parts, self.conversation_items(), self.input]

    def ancestors(self) -> list[ResponseRecord]:
        """Return the responses that this one continues, oldest first."""
        records: list[ResponseRecord] = []
        parent = self.parent
        while parent is not None:
            records.append(parent)
            parent = parent.parent
        return records[::-1]

    def wake_waiters(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class KeyReservation(Struct, frozen=True, kw_only=True):
    """The response that an Idempotency-Key is reserved for."""

    response_id: str
    fingerprint: bytes
    owner: str
    expires_at: float


class OutboxEntry(Struct):
    """A webhook delivery, and when it is due by the monotonic clock."""

    delivery: WebhookDelivery
    due_at: float

    def claim(self, *, until: float) -> WebhookDelivery:
        claimed = self.delivery
        self.delivery = replace(claimed, attempts=claimed.attempts + 1)
        self.due_at = until
        return claimed


def copy_items(items: Sequence[StoredItem]) -> list[StoredItem]:
    # A Raw may be a view that would keep a whole request body alive.
    return [StoredItem(id=item.id, raw=item.raw.copy()) for item in items]
