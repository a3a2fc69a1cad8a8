"""Items as stores keep them, and pages of lists."""

from __future__ import annotations

from msgspec import Raw, Struct


class StoredItem(Struct, frozen=True, kw_only=True, gc=False):
    """An item as clients see it: `raw` is its complete JSON, unknown fields included.

    A store does not change a byte of it.
    """

    id: str
    raw: Raw


class StorePageQuery(Struct, frozen=True, kw_only=True):
    """Up to `limit` entries after the one with the id `after`, by when they were created.

    A store of items may stop early, once those before its last one have more than `max_bytes`.
    """

    limit: int
    after: str | None = None
    is_descending: bool = False
    max_bytes: int | None = None
