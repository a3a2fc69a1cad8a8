"""An LRU cache limited by total size, and one for the tokens of long texts."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

V = TypeVar("V")

MAX_UNCACHED_CHARACTERS = 256
"""Encoding a text of this length or less costs no more than a lookup."""


class LruCache(Generic[V]):
    """Values by key. While their sizes exceed `limit`, the least recently used are evicted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[bytes, tuple[V, int]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def get(self, key: bytes) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: bytes, value: V, size: int) -> None:
        _, old_size = self._entries.pop(key, (None, 0))
        self._entries[key] = value, size
        self._size += size - old_size
        while self._size > self._limit:
            _, (_, evicted_size) = self._entries.popitem(last=False)
            self._size -= evicted_size


class TokenCache:
    """The tokens of long texts, so that each turn of a conversation encodes only what is new.

    Tenants (cache salts) share no entries: otherwise the time that a prompt takes would reveal
    what another tenant sent.
    """

    def __init__(self, salt: str | None, tokens: LruCache[array[int]]) -> None:
        self._salt = (salt or "").encode("utf-8", "surrogatepass")
        self._tokens = tokens

    def get(self, text: str) -> Sequence[int] | None:
        return None if len(text) <= MAX_UNCACHED_CHARACTERS else self._tokens.get(self._key(text))

    def put(self, text: str, token_ids: Sequence[int]) -> None:
        if len(text) > MAX_UNCACHED_CHARACTERS:
            self._tokens.put(self._key(text), array("Q", token_ids), len(token_ids))

    def _key(self, text: str) -> bytes:
        digest = blake2b(self._salt + b"\0", digest_size=16)
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.digest()
