"""Lists in pages, in either order (docs/reference/api.md#lists)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from antiphon.domain.errors import RequestError

Order = Literal["asc", "desc"]


class HasId(Protocol):
    """A member of a list."""

    @property
    def id(self) -> str: ...


L = TypeVar("L", bound=HasId)


class Page(Struct, Generic[L], frozen=True, kw_only=True):
    """One page of a list."""

    items: Sequence[L]
    has_more: bool


class PageQuery(Struct, frozen=True, kw_only=True):
    """Which page is requested: up to `limit` items after `after`, or up to `limit` before `before`.

    With both, the items between them.
    """

    after: str | None = None
    before: str | None = None
    limit: int = 20
    order: Order = "desc"

    def apply(self, items: Sequence[L]) -> Page[L]:
        """Return the requested page of `items`, which are oldest first. Raises: RequestError."""
        if self.order == "desc":
            items = items[::-1]
        if self.before is not None:
            items = items[: _position_of(items, self.before, "before")]
        if self.after is not None:
            items = items[_position_of(items, self.after, "after") + 1 :]
        is_end = self.before is not None and self.after is None
        page = items[-self.limit :] if is_end else items[: self.limit]
        return Page(items=page, has_more=len(page) < len(items))


def _position_of(items: Sequence[L], item_id: str, param: str) -> int:
    for position, item in enumerate(items):
        if item.id == item_id:
            return position
    raise not_in_list(item_id, param)


def not_in_list(item_id: str, param: str) -> RequestError:
    """Return the error of a list that should begin or end at an item that it does not have."""
    return RequestError(
        f"Item with id {item_id[:100]!r} not found.", param=param, code="invalid_value"
    )
