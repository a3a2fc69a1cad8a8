"""What a format remembers: the latest of it, up to a size."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

V = TypeVar("V")

SHORT = 256
"""Characters up to which encoding costs no more than looking up."""


class LruCache(Generic[V]):
    """Values by key; over `limit` in all, those last used longest ago are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._known: OrderedDict[bytes, tuple[V, int]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._known)

    def find(self, key: bytes) -> V | None:
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def remember(self, key: bytes, value: V, size: int) -> None:
        _, before = self._known.pop(key, (None, 0))
        self._known[key] = value, size
        self._size += size - before
        while self._size > self._limit:
            _, (_, forgotten) = self._known.popitem(last=False)
            self._size -= forgotten


class TokenCache:
    """The tokens of long texts: with each turn of a conversation only what is new is encoded.

    Kept apart by cache salt: how long a prompt takes says nothing about another tenant's.
    """

    def __init__(self, salt: str | None, known: LruCache[array[int]]) -> None:
        self._salt = (salt or "").encode("utf-8", "surrogatepass")
        self._known = known

    def find(self, text: str) -> Sequence[int] | None:
        return None if len(text) <= SHORT else self._known.find(self._key(text))

    def remember(self, text: str, token_ids: Sequence[int]) -> None:
        if len(text) > SHORT:
            self._known.remember(self._key(text), array("Q", token_ids), len(token_ids))

    def _key(self, text: str) -> bytes:
        digest = blake2b(self._salt + b"\0", digest_size=16)
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.digest()
