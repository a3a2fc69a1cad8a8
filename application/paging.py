"""Lists in pages (api_surface 1.4): the items that follow one, in either order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from antiphon.application.ports import StoredItem
from antiphon.domain.errors import RequestError

Order = Literal["asc", "desc"]


class Page(Struct, frozen=True, kw_only=True):
    """A part of a list."""

    items: Sequence[StoredItem]
    has_more: bool


class Cut(Struct, frozen=True, kw_only=True):
    """Which part is asked for: up to `limit` items that follow `after`."""

    after: str | None = None
    limit: int = 20
    order: Order = "desc"

    def of(self, items: Sequence[StoredItem]) -> Page:
        """Return that part of `items`, which are oldest first. Raises: RequestError."""
        if self.order == "desc":
            items = items[::-1]
        start = 0 if self.after is None else _position(items, self.after) + 1
        end = start + self.limit
        return Page(items=items[start:end], has_more=end < len(items))


def _position(items: Sequence[StoredItem], item_id: str) -> int:
    for position, item in enumerate(items):
        if item.id == item_id:
            return position
    raise RequestError(
        f"Item with id {item_id[:100]!r} not found.", param="after", code="invalid_value"
    )
