"""The histories that requests have continued, so that the next turn reads only what is new.

A response that has ended does not change, and neither does what came before it: its history is
kept with it, even if a client deletes an earlier response. Only a conversation's items can be
deleted one by one, so no history that begins in a conversation is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.application.support.lru_cache import LruCache
from antiphon.domain.history.conversation import Entry

MAX_BYTES = 32 * 1024 * 1024

BYTES_PER_RAW_BYTE = 2
"""An entry holds its JSON, and the texts in it."""

BYTES_PER_ENTRY = 1000


class KnownContexts:
    """Histories by tenant and response: the items up to the end of this response.

    Of a chain, only the newest one is kept.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._entries: LruCache[Sequence[Entry]] = LruCache(max_bytes)

    def get(self, tenant: str, response_id: str) -> Sequence[Entry] | None:
        return self._entries.get((tenant, response_id))

    def put(
        self, tenant: str, response_id: str, entries: Sequence[Entry], *, parent: str | None
    ) -> None:
        """Keep the history of a response, in place of its parent's."""
        size = sum(
            BYTES_PER_RAW_BYTE * len(memoryview(each.raw)) + BYTES_PER_ENTRY for each in entries
        )
        if parent is not None:
            self._entries.drop((tenant, parent))
        self._entries.put((tenant, response_id), entries, size)
