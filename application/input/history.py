"""Load the items that a request continues: a previous response's, or its conversation's
(docs/reference/api.md#previous-responses, docs/reference/api.md#conversations)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.application.ports import ResponseStore, StoredItem
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.domain.conversation import Entry
from antiphon.domain.decoding import decode_item
from antiphon.domain.errors import NotFound, RequestError, conversation_not_found
from antiphon.domain.request import CreateResponse

Remembered = Mapping[str, Sequence[StoredItem]]
"""Response id -> the items that a continuation of that response starts with."""


class LoadHistory:
    """Loads the items before a request's own input, in order, as they were stored."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(
        self, request: CreateResponse, *, tenant: str, remembered: Remembered
    ) -> list[Entry]:
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
        try:
            stored = await self._store.conversation_items(tenant, conversation_id)
        except NotFound:
            raise conversation_not_found(conversation_id) from None
        return await _entries(stored, "conversation")

    async def _of_response(self, tenant: str, previous: str) -> list[Entry]:
        try:
            parent = await self._store.get(tenant, previous)
            stored = await self._store.context(tenant, previous)
        except NotFound:
            raise RequestError(
                f"Previous response with id {previous[:100]!r} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        if parent.status in ("queued", "in_progress", "failed"):
            raise RequestError(
                f"Previous response {previous!r} is {parent.status} and cannot be continued.",
                param="previous_response_id",
                code="invalid_value",
            )
        return await _entries(stored, "previous_response_id")


async def _entries(stored: Sequence[StoredItem], path: str) -> list[Entry]:
    return await run_in_thread(len(stored) * ITEM_BYTES, _decode, stored, path)


def _decode(stored: Sequence[StoredItem], path: str) -> list[Entry]:
    return [Entry(item=decode_item(item.raw, path), raw=item.raw) for item in stored]
