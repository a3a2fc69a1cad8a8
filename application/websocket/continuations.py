"""What a connection can continue besides what is stored: the latest response of each lane
(docs/reference/api.md#continuations).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.application.input.history import Remembered
from antiphon.application.ports import StoredItem
from antiphon.application.websocket.lanes import Lane


class _Latest(Struct, frozen=True):
    response_id: str
    items: Sequence[StoredItem]
    size: int


class Continuations:
    """Responses that no store keeps; over `max_bytes` in all, the oldest are forgotten first."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._latest: dict[Lane, _Latest] = {}

    @property
    def remembered(self) -> Remembered:
        return {each.response_id: each.items for each in self._latest.values()}

    def keep(self, lane: Lane, response_id: str, items: Sequence[StoredItem]) -> None:
        """Remember a lane's latest response, in place of the one before it."""
        self.forget(lane)
        size = sum(len(memoryview(item.raw)) for item in items)
        self._latest[lane] = _Latest(response_id, items, size)
        while sum(each.size for each in self._latest.values()) > self._max_bytes:
            self.forget(next(iter(self._latest)))

    def forget(self, lane: Lane) -> None:
        """The lane's latest response is one that the store keeps."""
        self._latest.pop(lane, None)

    def evict(self, lane: Lane, response_id: str | None) -> None:
        """Forget a response whose continuation failed, unless another lane's: that was a fork."""
        latest = self._latest.get(lane)
        if latest is not None and latest.response_id == response_id:
            self.forget(lane)
