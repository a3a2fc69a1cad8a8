"""Lists in pages (docs/reference/api.md#lists): the items that follow one, in either order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from antiphon.domain.errors import RequestError

Order = Literal["asc", "desc"]


class HasId(Protocol):
    """What can be in a list."""

    @property
    def id(self) -> str: ...


L = TypeVar("L", bound=HasId)


class Page(Struct, Generic[L], frozen=True, kw_only=True):
    """A part of a list."""

    items: Sequence[L]
    has_more: bool


class PageQuery(Struct, frozen=True, kw_only=True):
    """Which part is asked for: up to `limit` items that follow `after`, or that `before` follows.

    With both, those between them.
    """

    after: str | None = None
    before: str | None = None
    limit: int = 20
    order: Order = "desc"

    def apply(self, items: Sequence[L]) -> Page[L]:
        """Return that part of `items`, which are oldest first. Raises: RequestError."""
        if self.order == "desc":
            items = items[::-1]
        if self.before is not None:
            items = items[: _position(items, self.before, "before")]
        if self.after is not None:
            items = items[_position(items, self.after, "after") + 1 :]
        is_end = self.before is not None and self.after is None
        cut = items[-self.limit :] if is_end else items[: self.limit]
        return Page(items=cut, has_more=len(cut) < len(items))


def _position(items: Sequence[L], item_id: str, param: str) -> int:
    for position, item in enumerate(items):
        if item.id == item_id:
            return position
    raise RequestError(
        f"Item with id {item_id[:100]!r} not found.", param=param, code="invalid_value"
    )
