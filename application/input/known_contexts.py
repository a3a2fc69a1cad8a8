"""The histories that requests have continued, so that the next turn reads only what is new.

A response that has ended does not change, and neither does what came before it: its history is
kept with it, even if a client deletes an earlier response. Only a conversation's items can be
deleted one by one, so no history that begins in a conversation is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.application.support.lru_cache import MAX_ENTRIES_PART, LruCache
from antiphon.domain.history.conversation import Entry

MAX_BYTES = 32 * 1024 * 1024

BYTES_PER_RAW_BYTE = 2
"""An entry holds its JSON, and the texts in it."""

BYTES_PER_ENTRY = 1000

MAX_EXCLUDED_BYTES = 1024 * 1024


class KnownContext(Struct, frozen=True):
    """The items up to the end of a response, and the bytes that they take."""

    entries: Sequence[Entry]
    size: int = 0

    def extended(self, new: Sequence[Entry]) -> KnownContext:
        """Return the history with more items. Only these are looked at."""
        size = sum(BYTES_PER_RAW_BYTE * len(memoryview(each.raw)) for each in new)
        return KnownContext([*self.entries, *new], self.size + size + BYTES_PER_ENTRY * len(new))


class KnownContexts:
    """Histories by tenant and response. Of a chain, only the newest one is kept."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_items = max_bytes // MAX_ENTRIES_PART // BYTES_PER_ENTRY
        self._known: LruCache[KnownContext] = LruCache(max_bytes)
        self._excluded: LruCache[bool] = LruCache(MAX_EXCLUDED_BYTES)

    def get(self, tenant: str, response_id: str) -> KnownContext | None:
        return self._known.get((tenant, response_id))

    def may_keep(self, items: int) -> bool:
        """Whether there is room for a history of so many items, if they are short."""
        return items <= self._max_items

    def put(
        self, tenant: str, response_id: str, context: KnownContext, *, parent: str | None
    ) -> None:
        """Keep the history of a response, in place of its parent's."""
        if parent is not None:
            self._known.drop((tenant, parent))
        self._known.put((tenant, response_id), context, context.size)

    def exclude(self, tenant: str, response_id: str) -> None:
        """Note that this history may not be kept, and so none that continues it."""
        self._excluded.put((tenant, response_id), True, 0)

    def is_excluded(self, tenant: str, response_id: str) -> bool:
        return self._excluded.get((tenant, response_id)) is not None
