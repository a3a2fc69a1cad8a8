"""Load the items that a request continues: a previous response's, or its conversation's
(docs/reference/api.md#previous-responses, docs/reference/api.md#conversations)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from antiphon.application.input.items import to_stored_item
from antiphon.application.input.known_contexts import KnownContext, KnownContexts
from antiphon.application.input.submission import Remembered
from antiphon.application.ports import Store, StoredItem, StorePageQuery
from antiphon.application.support.fair_queue import UNBOUNDED, FairQueue
from antiphon.application.support.loop_portions import LoopPortions
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.domain.errors import NotFound, NotInList, RequestError, conversation_not_found
from antiphon.domain.history.conversation import Entry, entry
from antiphon.domain.requests.decoding import decode_item
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response

MAX_LOADS_OF_TENANT = 2
"""The number of a tenant's histories that are loaded at a time. One may have any number of items;
if all requests loaded theirs at once, all of them would hold it while they wait for a thread. There
is no bound over all tenants, because two of them could then make the others wait.

A store on another machine hardly gets slower by it: a stored response takes some five operations,
for which PostgreSQL has ten connections and Redis 16."""

PAGE_ITEMS = 1000

MAX_CHECKED_LINKS = 500
"""How many responses of a chain are looked at before its history is kept: each is a read, once."""

Load = Callable[[], Awaitable[Sequence[StoredItem]]]


class LoadHistory:
    """Loads the items before a request's own input, in order, as they were stored."""

    def __init__(self, store: Store, contexts: KnownContexts | None = None) -> None:
        self._store = store
        self._contexts = contexts or KnownContexts()
        self._portions = LoopPortions()
        self._slots = FairQueue(UNBOUNDED, per_tenant=MAX_LOADS_OF_TENANT)

    async def __call__(
        self, request: CreateResponse, *, tenant: str, remembered: Remembered
    ) -> Sequence[Entry]:
        """Return the items: `remembered` by the connection, or from the store.

        The list is empty if the request continues nothing. Raises: RequestError, NotFound,
        StoreError.
        """
        if request.conversation_id is not None:
            return await self._of_conversation(tenant, request.conversation_id)
        previous = request.previous_response_id
        if previous is None:
            return []
        if previous in remembered:
            return await _entries(remembered[previous], "previous_response_id")
        return await self._of_response(tenant, previous)

    async def _of_conversation(self, tenant: str, conversation_id: str) -> list[Entry]:
        load = partial(self._store.list_conversation_items, tenant, conversation_id)
        try:
            return await self._load(tenant, load, "conversation")
        except NotFound:
            raise conversation_not_found(conversation_id) from None

    async def _of_response(self, tenant: str, response_id: str) -> Sequence[Entry]:
        try:
            response = await self._store.get_response(tenant, response_id)
            _check_can_continue(response)
            known = self._contexts.get(tenant, response_id)
            if known is None:
                return await self._read_context(tenant, response)
            # Many requests may know it at once; what follows takes a moment for each item.
            await self._portions.wait(tenant)
            return known.entries
        except NotFound:
            raise RequestError(
                f"Previous response with id {response_id[:100]!r} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None

    async def _read_context(self, tenant: str, response: Response) -> Sequence[Entry]:
        """Return the items up to the end of a response; keep them for the next turn."""
        parent = response.previous_response_id
        known = None if parent is None else self._contexts.get(tenant, parent)
        if known is not None and known.entries:
            rest = partial(self._read_rest, tenant, response, after=known.entries[-1])
            with suppress(NotInList):
                new = await self._load(tenant, rest, "previous_response_id")
                context = known.extended(new)
                self._contexts.put(tenant, response.id, context, parent=parent)
                return context.entries
        whole = partial(self._store.get_context, tenant, response.id)
        entries = await self._load(tenant, whole, "previous_response_id")
        if not self._contexts.may_keep(len(entries)):
            return entries
        if await self._has_no_conversation(tenant, response):
            context = KnownContext(()).extended(entries)
            self._contexts.put(tenant, response.id, context, parent=parent)
        else:
            self._contexts.exclude(tenant, response.id)  # the next turn need not look again
        return entries

    async def _read_rest(
        self, tenant: str, response: Response, *, after: Entry
    ) -> Sequence[StoredItem]:
        """Return what a response added to a history that ends with an item. Raises: NotInList."""
        found: list[StoredItem] = []
        last, is_more = after.item.id or "", True
        while is_more:
            query = StorePageQuery(limit=PAGE_ITEMS, after=last)
            page = await self._store.list_input_items(tenant, response.id, query)
            found += page
            is_more = len(page) == PAGE_ITEMS
            last = found[-1].id if found else last
        return [*found, *(to_stored_item(entry(item)) for item in response.output)]

    async def _has_no_conversation(self, tenant: str, response: Response) -> bool:
        """Whether no response of a chain belongs to a conversation, as far as a look tells."""
        for _ in range(MAX_CHECKED_LINKS):
            if response.conversation is not None:
                return False
            parent = response.previous_response_id
            if parent is None:
                return True
            if self._contexts.is_excluded(tenant, parent):
                return False
            try:
                response = await self._store.get_response(tenant, parent)
            except NotFound:  # deleted, but its items are there as long as this chain is
                return False
        return False

    async def _load(self, tenant: str, load: Load, path: str) -> list[Entry]:
        """Load and decode a history when it is the tenant's turn."""
        # Few wait here if the store hangs: it has just answered for the response, or for the claim
        # of the conversation.
        async with self._slots.slot(tenant):
            return await _entries(await load(), path)


def _check_can_continue(response: Response) -> None:
    if response.status in ("queued", "in_progress", "failed"):
        raise RequestError(
            f"Previous response {response.id!r} is {response.status} and cannot be continued.",
            param="previous_response_id",
            code="invalid_value",
        )


async def _entries(stored: Sequence[StoredItem], path: str) -> list[Entry]:
    return await run_in_thread(len(stored) * ITEM_BYTES, _decode, stored, path)


def _decode(stored: Sequence[StoredItem], path: str) -> list[Entry]:
    return [Entry(item=decode_item(item.raw, path), raw=item.raw) for item in stored]
