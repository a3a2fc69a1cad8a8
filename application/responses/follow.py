"""Read the events of a response, live or later, from the start or after a sequence number."""

from __future__ import annotations

from contextlib import suppress

from antiphon.application.ports import EventBatches, EventLog, Meter, NullMeter, Store
from antiphon.application.runs.stored_events import FollowedEvents, StoredEvents
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.telemetry.instruments import READERS
from antiphon.domain.errors import NotFound, RequestError


class FollowResponse:
    """Opens readers of a response's events: every reader sees the same events and numbers.

    A reader uses the log of this process if it has one, and otherwise the store's, which counts as
    work.
    """

    def __init__(
        self,
        log: EventLog,
        store: Store,
        meter: Meter | None = None,
        bytes_in_work: BytesInWork | None = None,
    ) -> None:
        self._bytes_in_work = bytes_in_work or BytesInWork()
        self._log = log
        self._store = store
        self._meter = meter or NullMeter()

    async def __call__(self, tenant: str, response_id: str, *, after: int = -1) -> EventBatches:
        """Return the events after number `after`.

        Raises: NotFound; RequestError if the log is gone; ConcurrencyLimitExceeded,
        ServerOverloaded if there is no room for it.
        """
        held = self._bytes_in_work.hold(tenant, "histories")
        await self._store.get_response(tenant, response_id)
        start = "first" if after < 0 else "resumed"
        with suppress(NotFound):
            local = await self._log.open(response_id, after=after)
            self._meter.add(READERS, 1, (start, "server"))
            return FollowedEvents(local, self._store, tenant, response_id, after=after, held=held)
        with suppress(NotFound):
            stored = await StoredEvents.open(
                self._store, tenant, response_id, after=after, held=held
            )
            self._meter.add(READERS, 1, (start, "store"))
            return stored
        raise RequestError(
            "This response can no longer be streamed; retrieve it without 'stream'.",
            param="stream",
            code="invalid_request_error",
        )
