"""Stores in this process's memory: nothing outlives it, and its size is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

from msgspec.structs import replace

from antiphon.adapters.stores.stored_json import body_of, output_of, response_from
from antiphon.application.ports import (
    Batches,
    Claim,
    Clock,
    EventLog,
    ResponseStore,
    StoredItem,
    StoredResponse,
)
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import ConversationLocked, NotFound, StoreError
from antiphon.domain.events import TERMINAL as LAST_EVENTS
from antiphon.domain.events import Event
from antiphon.domain.response import TERMINAL, Response

BATCH = 256
"""Events that a reader gets at most before others have their turn."""

TRY_JOINING = 16
"""Every so many events a reader tries whether waiting for one turn of the loop brings more."""


# --- events ---------------------------------------------------------------------------------------


class _Log:
    """The events of one run. They are numbered densely from 0: an event's number is its index."""

    __slots__ = ("__weakref__", "events", "over", "waiting")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.over = False
        self.waiting: list[asyncio.Future[None]] = []


_CLOSED = _Log()
_CLOSED.over = True


class _Reader:
    """One reader's place in a log.

    Not an async generator, which is over once an `anext` is cancelled: whoever waits for events
    with a time limit goes on where it was.
    """

    __slots__ = ("_joins", "_log", "_loop", "_next", "_yields")

    def __init__(self, log: _Log, first: int) -> None:
        self._log = log
        self._next = first
        self._yields = False
        self._joins = False
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if self._yields:  # a long replay would otherwise keep the event loop to itself
            self._yields = False
            await asyncio.sleep(0)
        first = self._next
        while first >= len(self._log.events):
            log = self._log
            if log.over:
                raise StopAsyncIteration
            # Each waits on a future of its own, so that cancelling one reader wakes no other.
            woken = self._loop.create_future()
            log.waiting.append(woken)
            try:
                await woken
            except BaseException:
                if woken in log.waiting:
                    log.waiting.remove(woken)
                raise
            if self._joins:
                await asyncio.sleep(0)
        # Nothing is awaited from here on: whoever is cancelled above has missed no event.
        batch = self._log.events[first : first + BATCH]
        self._next = first + len(batch)
        # What a fast run writes in the loop's next turn shares the batch, and so a send: half the
        # sends, at two thirds of the cost. A slow run is not waited for; a try now and then tells.
        self._joins = len(batch) > 1 or not self._next % TRY_JOINING
        if len(batch) == BATCH:
            self._yields = True
        return batch

    async def aclose(self) -> None:
        self._log = _CLOSED


class MemoryEventLog(EventLog):
    """Running logs are always kept; finished ones for `keep_s`, `keep_events` in all at the most.

    What is over these bounds goes when the next log is created, the longest finished first.
    """

    def __init__(
        self, *, keep_events: int = 20_000, keep_s: float = 600, clock: Clock = time.time
    ) -> None:
        self._keep_events = keep_events
        self._keep_s = keep_s
        self._clock = clock
        self._logs: dict[str, _Log] = {}
        self._finished: dict[str, float] = {}
        self._finished_events = 0
        # A dropped run that still goes on is heard by the readers that have it open: they alone
        # keep its log alive.
        self._dropped: WeakValueDictionary[str, _Log] = WeakValueDictionary()

    async def create(self, response_id: str) -> None:
        self._evict()
        self._logs[response_id] = _Log()

    async def append(self, response_id: str, events: Sequence[Event]) -> None:
        log = self._logs.get(response_id) or self._dropped.get(response_id)
        if log is None or not events:
            return
        log.events.extend(events)
        if type(events[-1]) in LAST_EVENTS:
            self._finish(response_id, log)
        if log.waiting:
            for woken in log.waiting:
                if not woken.done():
                    woken.set_result(None)
            log.waiting.clear()

    async def open(self, response_id: str, *, after: int = -1) -> Batches:
        log = self._logs.get(response_id)
        if log is None:
            raise NotFound(f"There are no events of response {response_id!r}.")
        return _Reader(log, max(after, -1) + 1)

    async def drop(self, response_id: str) -> None:
        log = self._logs.get(response_id)
        if log is None:
            return
        self._forget(response_id)
        if not log.over:
            self._dropped[response_id] = log

    def _finish(self, response_id: str, log: _Log) -> None:
        log.over = True
        if response_id in self._logs:
            self._finished[response_id] = self._clock()
            self._finished_events += len(log.events)

    def _evict(self) -> None:
        oldest_kept = self._clock() - self._keep_s
        while self._finished:
            response_id, finished_at = next(iter(self._finished.items()))
            if self._finished_events <= self._keep_events and finished_at >= oldest_kept:
                return
            self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        log = self._logs.pop(response_id)
        if self._finished.pop(response_id, None) is not None:
            self._finished_events -= len(log.events)


# --- responses ------------------------------------------------------------------------------------


class _Conversation:
    """A conversation with its items by place. A place is given once: later items have higher."""

    __slots__ = ("about", "held_by", "items", "next_place")

    def __init__(self, about: Conversation) -> None:
        self.about = about
        self.items: dict[int, StoredItem] = {}
        self.held_by: str | None = None
        self.next_place = 0

    def append(self, items: Sequence[StoredItem]) -> None:
        self.items.update(enumerate(items, self.next_place))
        self.next_place += len(items)


class _Kept:
    """A response with its place in the tree of responses that continue each other.

    `conversation` is the one that it was made in, whose items below `place` it was given.
    """

    __slots__ = (
        "body",
        "conversation",
        "deleted",
        "input",
        "output",
        "parent",
        "place",
        "running",
        "tenant",
        "used_by",
    )

    def __init__(
        self,
        tenant: str,
        stored: StoredResponse,
        output: list[StoredItem],
        parent: _Kept | None,
        conversation: _Conversation | None,
    ) -> None:
        self.tenant = tenant
        self.conversation = conversation
        self.place = conversation.next_place if conversation else 0
        self.body = body_of(stored.response)
        self.input = _copied(stored.input)
        self.output = output
        self.parent = parent
        self.running = stored.response.status not in TERMINAL
        self.deleted = False
        self.used_by = 0

    def response(self) -> Response:
        return response_from(self.body, [bytes(item.raw) for item in self.output])

    def given(self) -> list[StoredItem]:
        """Return what the conversation had then and still has."""
        items = self.conversation.items if self.conversation else {}
        return [item for place, item in items.items() if place < self.place]

    def ancestors(self) -> list[_Kept]:
        """Return those that this one continues, oldest first."""
        found: list[_Kept] = []
        kept = self.parent
        while kept is not None:
            found.append(kept)
            kept = kept.parent
        return found[::-1]


class MemoryResponseStore(ResponseStore):
    """Past `keep` responses, those that were created first are deleted; running ones never are.

    The same number bounds conversations; one that a response has claimed is not deleted.
    """

    def __init__(self, *, keep: int = 10_000) -> None:
        self._keep = keep
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._conversations: dict[tuple[str, str], _Conversation] = {}
        # An item that is in a response and in a conversation is here twice.
        self._items: dict[tuple[str, str], list[StoredItem]] = {}

    async def start(self) -> None:
        pass

    async def aclose(self) -> None:
        pass

    async def create(self, tenant: str, stored: StoredResponse) -> None:
        response = stored.response
        if (tenant, response.id) in self._kept:
            raise StoreError(f"There is a response {response.id!r} already.")
        parent = self._kept.get((tenant, response.previous_response_id or ""))
        kept = _Kept(
            tenant, stored, output_of(response), parent, self._conversation_of(tenant, response)
        )
        if parent is not None:
            parent.used_by += 1
        self._kept[tenant, response.id] = kept
        self._list(tenant, kept.input)
        self._list(tenant, kept.output)
        self._make_room()

    async def finish(self, tenant: str, response: Response) -> bool:
        kept = self._kept.get((tenant, response.id))
        if kept is None or not kept.running:
            return False
        self._unlist(tenant, kept.output)
        kept.running = False
        kept.body, kept.output = body_of(response), output_of(response)
        self._list(tenant, kept.output)
        if response.conversation is not None:
            left = [*kept.input, *kept.output] if response.leaves_items else []
            self._release(tenant, response.conversation.id, response.id, left)
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

    async def unfinished(self) -> list[tuple[str, Response]]:
        return [(kept.tenant, kept.response()) for kept in self._kept.values() if kept.running]

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        if (tenant, conversation.id) in self._conversations:
            raise StoreError(f"There is a conversation {conversation.id!r} already.")
        self._conversations[tenant, conversation.id] = _Conversation(conversation)
        self._append(tenant, self._conversations[tenant, conversation.id], _copied(items))
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
        if found.held_by is not None:
            raise ConversationLocked
        self._append(tenant, found, _copied(items))

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> None:
        items = self._find_conversation(tenant, conversation_id).items
        places = [place for place, item in items.items() if item.id == item_id]
        if not places:
            raise NotFound(f"There is no item {item_id!r} in conversation {conversation_id!r}.")
        self._unlist(tenant, [items.pop(place) for place in places])

    async def claim(self, tenant: str, conversation_id: str, response_id: str) -> None:
        found = self._find_conversation(tenant, conversation_id)
        if found.held_by is not None:
            raise ConversationLocked
        found.held_by = response_id

    async def release(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        self._release(tenant, conversation_id, response_id, _copied(items))

    async def claims(self) -> list[Claim]:
        return [
            Claim(tenant=tenant, conversation_id=conversation_id, response_id=found.held_by)
            for (tenant, conversation_id), found in self._conversations.items()
            if found.held_by is not None
        ]

    def _release(
        self, tenant: str, conversation_id: str, response_id: str, items: Sequence[StoredItem]
    ) -> None:
        found = self._conversations.get((tenant, conversation_id))
        if found is not None and found.held_by == response_id:
            found.held_by = None
            self._append(tenant, found, items)

    def _find_conversation(self, tenant: str, conversation_id: str) -> _Conversation:
        try:
            return self._conversations[tenant, conversation_id]
        except KeyError:
            raise NotFound(f"There is no conversation {conversation_id!r}.") from None

    def _conversation_of(self, tenant: str, response: Response) -> _Conversation | None:
        ref = response.conversation
        return self._conversations.get((tenant, ref.id)) if ref else None

    def _append(self, tenant: str, found: _Conversation, items: Sequence[StoredItem]) -> None:
        found.append(items)
        self._list(tenant, items)

    def _forget_old_conversations(self) -> None:
        while len(self._conversations) > self._keep:
            free = (key for key, found in self._conversations.items() if found.held_by is None)
            over = next(free, None)
            if over is None:
                return
            self._forget_conversation(*over)

    def _forget_conversation(self, tenant: str, conversation_id: str) -> None:
        found = self._conversations.pop((tenant, conversation_id))
        self._unlist(tenant, found.items.values())
        found.items.clear()

    def _find(self, tenant: str, response_id: str) -> _Kept:
        try:
            return self._kept[tenant, response_id]
        except KeyError:
            raise NotFound(f"There is no response {response_id!r}.") from None

    def _make_room(self) -> None:
        while len(self._kept) > self._keep:
            over = next((key for key, kept in self._kept.items() if not kept.running), None)
            if over is None:
                return
            self._forget(*over)

    def _forget(self, tenant: str, response_id: str) -> None:
        kept: _Kept | None = self._kept.pop((tenant, response_id))
        assert kept is not None
        kept.deleted, kept.body = True, b""
        if kept.conversation is not None and kept.conversation.held_by == response_id:
            kept.conversation.held_by = None
        # Items go once no response continues the one that brought them; so may those before it.
        while kept is not None and kept.deleted and not kept.used_by:
            self._unlist(tenant, (*kept.input, *kept.output))
            kept = kept.parent
            if kept is not None:
                kept.used_by -= 1

    def _list(self, tenant: str, items: Iterable[StoredItem]) -> None:
        for item in items:
            if item.id:
                self._items.setdefault((tenant, item.id), []).append(item)

    def _unlist(self, tenant: str, items: Iterable[StoredItem]) -> None:
        for item in items:
            listed = self._items.get((tenant, item.id), [])
            where = (place for place, one in enumerate(listed) if one is item)
            if (place := next(where, None)) is not None:
                del listed[place]
            if not listed:
                self._items.pop((tenant, item.id), None)


def _copied(items: Sequence[StoredItem]) -> list[StoredItem]:
    # A Raw may be a view that would keep a whole request body alive.
    return [StoredItem(id=item.id, raw=item.raw.copy()) for item in items]
