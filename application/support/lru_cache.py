"""An LRU cache limited by bytes.

Clients choose what is cached, refused requests included. So every cache whose keys or values come
from requests has a limit in bytes, and keeps no entry that would take much of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from hashlib import blake2b
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")

ENTRY_BYTES = 250
"""What an entry takes besides its value: a small key, a tuple, and a place in the order."""

MAX_ENTRIES_PART = 4
"""An entry larger than 1/4 of the cache is not stored: it would evict what others use."""


def digest_of(*parts: bytes) -> bytes:
    """Return a key of 16 bytes, so that a cache does not hold what it was made from."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class LruCache(Generic[V]):
    """Values by key. While they exceed `max_bytes`, the least recently used are evicted."""

    def __init__(self, max_bytes: int) -> None:
        self._limit = max_bytes
        self._lock = Lock()  # long turns are rendered in threads
        self._size = 0
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: V, value_bytes: int) -> None:
        """Store the value, unless it is large; `value_bytes` is its size in memory, and that of a
        key that is not small.
        """
        size = value_bytes + ENTRY_BYTES
        with self._lock:
            _, old_size = self._entries.pop(key, (None, 0))
            self._size -= old_size
            if size * MAX_ENTRIES_PART > self._limit:
                return
            self._entries[key] = value, size
            self._size += size
            while self._size > self._limit:
                _, (_, evicted_size) = self._entries.popitem(last=False)
                self._size -= evicted_size

    def drop(self, key: Hashable) -> None:
        with self._lock:
            _, size = self._entries.pop(key, (None, 0))
            self._size -= size
