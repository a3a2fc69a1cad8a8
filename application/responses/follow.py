"""Read the events of a response, live or later, from the start or after a sequence number."""

from __future__ import annotations

from contextlib import suppress

from antiphon.application.ports import EventBatches, EventLog, Store
from antiphon.application.runs.stored_events import FollowedEvents, StoredEvents
from antiphon.domain.errors import NotFound, RequestError


class FollowResponse:
    """Opens readers of a response's events: every reader sees the same events and numbers.

    A reader uses the log of this process if it has one, and otherwise the store's.
    """

    def __init__(self, log: EventLog, store: Store) -> None:
        self._log = log
        self._store = store

    async def __call__(self, tenant: str, response_id: str, *, after: int = -1) -> EventBatches:
        """Return the events after number `after`.

        Raises: NotFound; RequestError if the log is gone.
        """
        await self._store.get(tenant, response_id)
        with suppress(NotFound):
            local = await self._log.open(response_id, after=after)
            return FollowedEvents(local, self._store, tenant, response_id, after=after)
        with suppress(NotFound):
            return await StoredEvents.open(self._store, tenant, response_id, after=after)
        raise RequestError(
            "This response can no longer be streamed; retrieve it without 'stream'.",
            param="stream",
            code="invalid_request_error",
        )
