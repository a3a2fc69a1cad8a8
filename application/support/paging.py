"""Lists in pages, in either order (docs/reference/api.md#lists)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import VectorPageQuery

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


async def read_page(
    read: Callable[[VectorPageQuery], Awaitable[Sequence[L]]], query: VectorPageQuery
) -> Page[L]:
    """Return the page of a list that `read` reads. Raises: what `read` raises."""
    found = await read(replace(query, limit=query.limit + 1))
    is_end = query.before is not None and query.after is None
    page = found[-query.limit :] if is_end else found[: query.limit]
    return Page(items=page, has_more=len(page) < len(found))
