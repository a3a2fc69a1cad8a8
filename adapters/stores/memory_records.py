"""The records of the memory store: responses, conversations, logs, keys, webhook deliveries."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
from antiphon.application.ports import EventChunk, StoredItem, StoredResponse, WebhookDelivery
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import StoreError
from antiphon.domain.response import Response


class Claim(Struct, frozen=True):
    response_id: str
    owner: str


class ConversationRecord:
    """A conversation with its items by place. A place is given once: later items have higher."""

    __slots__ = ("about", "claim", "items", "next_place")

    def __init__(self, about: Conversation) -> None:
        self.about = about
        self.items: dict[int, StoredItem] = {}
        self.claim: Claim | None = None
        self.next_place = 0

    def append(self, items: Sequence[StoredItem]) -> None:
        self.items.update(enumerate(items, self.next_place))
        self.next_place += len(items)


class ChunkLog:
    """The chunks of one run, which follow each other."""

    __slots__ = ("_firsts", "chunks", "size")

    def __init__(self, first: EventChunk) -> None:
        self.chunks = [first]
        self._firsts = [first.first]
        self.size = len(first.body)

    def has(self, chunk: EventChunk) -> bool:
        """Whether it is there already. Raises: StoreError if it does not follow the last."""
        last = self.chunks[-1]
        if chunk.first == last.first + last.count:
            return False
        if self.chunks[self._place(chunk.first)] == chunk:
            return True
        raise StoreError(
            f"Events from number {chunk.first} on do not follow {last.count} from {last.first} on."
        )

    def add(self, chunk: EventChunk) -> None:
        self.chunks.append(chunk)
        self._firsts.append(chunk.first)
        self.size += len(chunk.body)

    def read(self, after: int, limit_bytes: int) -> list[EventChunk]:
        """Return chunks from the one that has `after + 1` in it on, a piece of them."""
        found: list[EventChunk] = []
        if after >= self.last:
            return found
        size = 0
        for chunk in islice(self.chunks, self._place(after + 1), None):
            size += len(chunk.body)
            if found and size > limit_bytes:
                break
            found.append(chunk)
        return found

    @property
    def last(self) -> int:
        """The number of its last event."""
        return self.chunks[-1].first + self.chunks[-1].count - 1

    def _place(self, number: int) -> int:
        return max(bisect_right(self._firsts, number) - 1, 0)


class ResponseRecord:
    """A response with its run, and its place in the tree of responses that continue each other.

    `conversation` is the one that it was made in, whose items below `place` it was given.
    """

    __slots__ = (
        "body",
        "conversation",
        "deleted",
        "epoch",
        "expires_at",
        "finished_at",
        "input",
        "job",
        "log",
        "output",
        "owner",
        "parent",
        "place",
        "tenant",
        "used_by",
        "waiting",
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
        self.place = conversation.next_place if conversation else 0
        self.body = body_of(stored.response)
        self.input = copies_of(stored.input)
        self.output = output_of(stored.response)
        self.parent = parent
        self.deleted = False
        self.used_by = 0
        self.owner = stored.run.owner
        self.epoch = 0 if self.owner is None else 1
        self.job = stored.run.job
        self.log = None if stored.run.events is None else ChunkLog(stored.run.events)
        self.expires_at = None if stored.response.conversation else stored.expires_at
        self.finished_at: float | None = None
        self.waiting: list[asyncio.Future[None]] = []

    def response(self) -> Response:
        return response_from(self.body, [bytes(item.raw) for item in self.output])

    def given(self) -> list[StoredItem]:
        """Return what the conversation had then and still has."""
        items = self.conversation.items if self.conversation else {}
        return [item for place, item in items.items() if place < self.place]

    def ancestors(self) -> list[ResponseRecord]:
        """Return those that this one continues, oldest first."""
        found: list[ResponseRecord] = []
        kept = self.parent
        while kept is not None:
            found.append(kept)
            kept = kept.parent
        return found[::-1]

    def wake(self) -> None:
        for woken in self.waiting:
            if not woken.done():
                woken.set_result(None)
        self.waiting.clear()


class ReservedKey(Struct, frozen=True, kw_only=True):
    response_id: str
    fingerprint: bytes
    owner: str
    expires_at: float


class OutboxEntry(Struct):
    """A notice with when it is due, by the clock that nobody sets."""

    delivery: WebhookDelivery
    at: float


def copies_of(items: Sequence[StoredItem]) -> list[StoredItem]:
    # A Raw may be a view that would keep a whole request body alive.
    return [StoredItem(id=item.id, raw=item.raw.copy()) for item in items]
