"""Responses, their items, and how much of the store a tenant uses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from msgspec import Raw, Struct

from antiphon.application.ports.stores.events import EventChunk
from antiphon.application.ports.stores.items import StoredItem, StorePageQuery
from antiphon.application.ports.stores.runs import Lease
from antiphon.application.ports.stores.webhooks import WebhookDelivery
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.text_search import TextSearch


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


class StorageUsage(Struct, frozen=True, kw_only=True):
    """A tenant's use of the store: `bytes` is the approximate size of bodies, items and logs.

    `waiting` counts the runs without an owner: not leased yet, or given back.
    """

    responses: int = 0
    bytes: int = 0
    waiting: int = 0


class FoundResponse(Struct, frozen=True, kw_only=True):
    """A response that may have the words of a search. `items` are its own input and its output."""

    response: ResponseSummary
    items: Sequence[Raw]


class FoundPage(Struct, frozen=True, kw_only=True):
    """A part of a search: `searched` responses were read, up to the one with `last_id`.

    `is_last` if no other response comes after that.
    """

    found: Sequence[FoundResponse]
    searched: int
    last_id: str | None
    is_last: bool


MAX_SEARCHED_BYTES = 1024 * 1024
"""Of an item. A store may pass over longer ones, which are images and files."""


class ResponseStore(Protocol):
    """Responses and their items, by tenant. The promises of `Store` hold for all parts of a store.

    A response and its conversation share one copy of an item.
    """

    @abstractmethod
    async def create_response(self, tenant: str, stored: StoredResponse) -> None:
        """Store a new response with its run's job and first events; its status is not terminal yet.

        It continues `previous_response_id` if that is another response that the tenant has now, and
        nothing otherwise. In a conversation, its input is what the conversation has now. Its own
        `input` may be empty, or contain an item twice. Raises, and stores nothing: StoreError if
        the tenant has a response with this id; IdempotencyKeyInUse if the response has lost its
        Idempotency-Key.
        """

    @abstractmethod
    async def finish_response(
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
        earlier output. Raises: StoreError, and writes nothing, for events that `append_events`
        rejects.

        The same transaction frees a conversation that the response has claimed, and appends the
        response's input and output to it unless the response failed (`Response.keeps_items`).
        """

    @abstractmethod
    async def get_response(self, tenant: str, response_id: str) -> Response:
        """Raises: NotFound."""

    @abstractmethod
    async def list_responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        """Return a page of the tenant's responses, with the state that `get_response` has.

        Long responses may not fill the memory. Raises: NotFound if there is no `after`.
        """

    async def search_responses(
        self,
        tenant: str,  # noqa: ARG002 -- for stores that can search
        search: TextSearch,  # noqa: ARG002
        query: StorePageQuery,  # noqa: ARG002
    ) -> FoundPage | None:
        """Return up to `query.limit` responses whose own items, input and output, have the words.

        None if this store cannot search. It may return responses without the words, as the caller
        checks all; but it misses none that has them in items of up to MAX_SEARCHED_BYTES. It may
        stop early, so that a call does not take long, but reads one response at least. Raises:
        NotFound if there is no `query.after`.
        """
        return None

    @abstractmethod
    async def list_input_items(
        self, tenant: str, response_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        """Return the input of the model: the chain's inputs and outputs, then this input.

        From a conversation, the items that it had then and still has. With a `query`, only that
        page of them: it costs what it has, however long the history is. Raises: NotFound;
        NotInList if there is no `after`.
        """

    @abstractmethod
    async def get_context(self, tenant: str, response_id: str) -> list[StoredItem]:
        """Return the input of the model, followed by the response's output. Raises: NotFound."""

    @abstractmethod
    async def get_item(self, tenant: str, item_id: str) -> StoredItem:
        """Return the newest item with this id, from any response or conversation. Raises: NotFound.

        It exists until the last response and conversation that have it are deleted.
        """

    @abstractmethod
    async def delete_response(self, tenant: str, response_id: str) -> None:
        """Delete the response, its log, its job and its Idempotency-Key.

        Its conversation, and responses that continue it, keep its items. Its webhooks are still
        delivered. A conversation that it has claimed becomes free. Raises: NotFound.
        """

    @abstractmethod
    async def get_storage_usage(self, tenant: str) -> StorageUsage:
        """Return how much of the store the tenant uses now."""

    @abstractmethod
    async def sweep(self, *, keep_events_s: float, limit: int = 1000) -> int:
        """Delete expired responses as `delete_response` does, the logs of runs that ended
        `keep_events_s` ago, and expired Idempotency-Keys.

        Delete `limit` of them at most, and return their number; 0 when nothing is left. A running
        response does not expire, nor does a response in a conversation.
        """
