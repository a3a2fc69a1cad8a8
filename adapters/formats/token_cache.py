"""A cache for the tokens of long texts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from antiphon.application.support.lru_cache import LruCache

MAX_UNCACHED_CHARACTERS = 16
"""Encoding a text of this length or less costs no more than a lookup. One of 256 characters takes
40 to 70 microseconds, a lookup 3."""

MAX_CACHED_CHARACTERS = 1_000_000
"""The tokens of a longer text are too many for the cache, so its digest is not computed either."""


def token_array(token_ids: Sequence[int] = ()) -> array[int]:
    """Return tokens in 4 bytes each, or in 8 if one needs more, as those of a scripted model.

    A list takes 40, and its integers lie between others: forty long prompts at a time left 75 MB in
    pieces that the interpreter never gave back.
    """
    try:
        return array("I", token_ids)
    except OverflowError:
        return array("Q", token_ids)


class TokenCache:
    """The tokens of long texts, so that each turn of a conversation encodes only what is new.

    Tenants (cache salts) share no entries: otherwise the time that a prompt takes would reveal
    what another tenant sent.
    """

    def __init__(self, salt: str | None, tokens: LruCache[array[int]]) -> None:
        self._salt = (salt or "").encode("utf-8", "surrogatepass")
        self._tokens = tokens

    def get(self, text: str) -> array[int] | None:
        return self._tokens.get(self._key(text)) if _is_cacheable(text) else None

    def put(self, text: str, token_ids: Sequence[int]) -> None:
        if _is_cacheable(text):
            ids = token_array(token_ids)
            self._tokens.put(self._key(text), ids, len(ids) * ids.itemsize)

    def _key(self, text: str) -> bytes:
        digest = blake2b(self._salt + b"\0", digest_size=16)
        digest.update(text.encode("utf-8", "surrogatepass"))
        return digest.digest()


def _is_cacheable(text: str) -> bool:
    return MAX_UNCACHED_CHARACTERS < len(text) <= MAX_CACHED_CHARACTERS
