"""Lists in pages, in either order (docs/reference/api.md#lists)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

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
