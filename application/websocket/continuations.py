"""Responses that a connection can continue although no store has them: the latest of each lane
(docs/reference/api.md#continuations).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.application.input.submission import Remembered
from antiphon.application.ports import StoredItem
from antiphon.application.support.bytes_in_work import BytesInWork, HeldBytes
from antiphon.application.websocket.lanes import Lane
from antiphon.domain.errors import RequestError


class _LatestResponse(Struct, frozen=True):
    response_id: str
    items: Sequence[StoredItem]
    size: int


class Continuations:
    """The latest unstored response of each lane.

    The oldest are forgotten first if they take more than `max_bytes` together, or if those of all
    connections would leave the tenant less than half of its share for other work.
    """

    def __init__(self, held: HeldBytes, work: BytesInWork, *, max_bytes: int) -> None:
        self._held = held
        self._work = work
        self._max_bytes = max_bytes
        self._latest: dict[Lane, _LatestResponse] = {}

    @property
    def remembered(self) -> Remembered:
        return {latest.response_id: latest.items for latest in self._latest.values()}

    def keep(self, lane: Lane, response_id: str, items: Sequence[StoredItem]) -> None:
        """Remember a lane's latest response instead of the one before it."""
        self.forget(lane)
        size = sum(len(memoryview(item.raw)) for item in items)
        self._latest[lane] = _LatestResponse(response_id, items, size)
        while not self._has_room():  # nothing always has room
            del self._latest[next(iter(self._latest))]

    def forget(self, lane: Lane) -> None:
        """Forget the lane's latest response, for example because a store has the new one."""
        if self._latest.pop(lane, None) is not None:
            self._held.resize(self._size())

    def evict(self, lane: Lane, response_id: str | None) -> None:
        """Forget a response whose continuation failed, if it is this lane's latest.

        A request that continues another lane's response is a fork and leaves that lane alone.
        """
        latest = self._latest.get(lane)
        if latest is not None and latest.response_id == response_id:
            self.forget(lane)

    def _size(self) -> int:
        return sum(each.size for each in self._latest.values())

    def _has_room(self) -> bool:
        size = self._size()
        growth, kept_free = size - self._held.counted, self._work.share // 2
        if size > self._max_bytes:
            return False
        if growth > 0 and not self._work.has_room(self._held.tenant, growth + kept_free):
            return False
        try:
            self._held.resize(size)
        except RequestError:
            return False
        return True
