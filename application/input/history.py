"""The items that a request continues: those of an earlier response, or of its conversation
(docs/reference/api.md#previous-responses, #conversations)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.application.ports import ResponseStore, StoredItem
from antiphon.domain.conversation import Entry
from antiphon.domain.decoding import decode_item
from antiphon.domain.errors import NotFound, RequestError, conversation_not_found
from antiphon.domain.request import CreateResponse

Remembered = Mapping[str, Sequence[StoredItem]]
"""By the id of a response: all that a response which continues it is given first."""


def item_in(remembered: Remembered, item_id: str) -> StoredItem | None:
    every = (item for items in remembered.values() for item in items)
    return next((item for item in every if item.id == item_id), None)


class LoadHistory:
    """What stands before a request's own input, in order, and as it was kept."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(
        self, request: CreateResponse, *, tenant: str, remembered: Remembered
    ) -> list[Entry]:
        """Return what is continued: `remembered` by the connection, or else in the store.

        None where nothing is continued. Raises: RequestError, NotFound, StoreError.
        """
        if request.conversation_id is not None:
            return await self._of_conversation(tenant, request.conversation_id)
        previous = request.previous_response_id
        if previous is None:
            return []
        if previous in remembered:
            return _entries(remembered[previous], "previous_response_id")
        return await self._of_response(tenant, previous)

    async def _of_conversation(self, tenant: str, conversation_id: str) -> list[Entry]:
        try:
            stored = await self._store.conversation_items(tenant, conversation_id)
        except NotFound:
            raise conversation_not_found(conversation_id) from None
        return _entries(stored, "conversation")

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
        return _entries(stored, "previous_response_id")


def _entries(stored: Sequence[StoredItem], path: str) -> list[Entry]:
    return [Entry(item=decode_item(item.raw, path), raw=item.raw) for item in stored]
