"""Read the events of a response: from the start or after a number, live or after the fact."""

from __future__ import annotations

from antiphon.application.ports import Batches, EventLog, ResponseStore
from antiphon.domain.errors import NotFound, RequestError


class FollowResponse:
    """Any number of readers, at any time, see the same events under the same numbers."""

    def __init__(self, log: EventLog, store: ResponseStore) -> None:
        self._log = log
        self._store = store

    async def __call__(self, tenant: str, response_id: str, *, after: int = -1) -> Batches:
        """Return the events above `after`. Raises: NotFound; RequestError if the log is gone."""
        await self._store.get(tenant, response_id)
        try:
            return await self._log.open(response_id, after=after)
        except NotFound:
            raise RequestError(
                "This response can no longer be streamed; retrieve it without 'stream'.",
                param="stream",
                code="invalid_request_error",
            ) from None
