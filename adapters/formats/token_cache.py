"""A cache for the tokens of long texts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from sys import getsizeof

from antiphon.application.support.lru_cache import LruCache

MAX_UNCACHED_CHARACTERS = 16
"""Encoding a text of this length or less costs no more than a lookup. One of 256 characters takes
40 to 70 microseconds, a lookup 3."""

MAX_CACHED_CHARACTERS = 1_000_000
"""The tokens of a longer text are too many for the cache, so it is not looked up either."""


TOKEN_BYTES = 8
"""The bytes that a kept token takes."""

MAX_SHARED = 262_144
"""Vocabularies are smaller than this; only a scripted model has tokens above."""

_shared: dict[int, int] = {}


def share_tokens(token_ids: Sequence[int]) -> Sequence[int]:
    """Return tokens to keep: of equal ones, all have one integer, as long as the process lives.

    A list of new integers takes 40 bytes a token, and they lie between others: forty long prompts
    at a time left 75 MB in pieces that the interpreter never gave back. And a prompt of 150,000
    tokens took 4 ms to make from an array, each turn anew; from these, it is copied in 0.3 ms.
    """
    if max(token_ids, default=0) < MAX_SHARED:
        return tuple(map(_shared.setdefault, token_ids, token_ids))
    return array("Q", token_ids)


def join_tokens(parts: Sequence[Sequence[int]]) -> list[int]:
    """Return the tokens of all parts, in a list that is made once.

    One that grows to 150,000 tokens is moved some twenty times, each time to new pages: that took
    as long as all else of a prompt whose tokens are known.
    """
    ids = [0] * sum(map(len, parts))
    start = 0
    for part in parts:
        end = start + len(part)
        ids[start:end] = part
        start = end
    return ids


class TokenCache:
    """The tokens of long texts, so that each turn of a conversation encodes only what is new.

    Tenants (cache salts) share no entries: otherwise the time that a prompt takes would reveal
    what another tenant sent. A text is its own key: Python computes the hash of a string once, and
    faster than any digest.
    """

    def __init__(self, salt: str | None, tokens: LruCache[Sequence[int]]) -> None:
        self._salt = salt or ""
        self._tokens = tokens

    def get(self, text: str) -> Sequence[int] | None:
        return self._tokens.get((self._salt, text)) if _is_cacheable(text) else None

    def put(self, text: str, token_ids: Sequence[int]) -> None:
        """Keep tokens that are shared; see `share_tokens`."""
        if _is_cacheable(text):
            size = getsizeof(text) + TOKEN_BYTES * len(token_ids)
            self._tokens.put((self._salt, text), token_ids, size)


def _is_cacheable(text: str) -> bool:
    return MAX_UNCACHED_CHARACTERS < len(text) <= MAX_CACHED_CHARACTERS
