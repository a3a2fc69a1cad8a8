"""A prefix cache without values: it knows which prefix a prompt shares with earlier prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 16
"""Tokens per block. Prefixes are cached in whole blocks, as in real engines."""


class PrefixCache:
    """The blocks of earlier prompts, as an LRU cache of `limit` blocks of 180 bytes each."""

    def __init__(self, limit: int = 16384) -> None:
        self._limit = limit
        # The first entries of a plain dict take long to find after many were deleted there.
        self._known: OrderedDict[int, None] = OrderedDict()

    def admit(self, token_ids: Sequence[int], *salt: str | None) -> int:
        """Return how many tokens of the prompt are cached for this salt, and cache the prompt.

        At least one token always counts as computed.

        >>> prefixes = PrefixCache()
        >>> prefixes.admit(range(40)), prefixes.admit([*range(20), 0, 0]), prefixes.admit(range(40))
        (0, 16, 32)
        """
        known, tokens = self._known, tuple(token_ids)
        cached, block = 0, hash(salt)
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            # A block's hash covers all blocks before it.
            block = hash((block, tokens[end - BLOCK : end]))
            if block in known:
                known.move_to_end(block)
                if cached == end - BLOCK and end < len(tokens):
                    cached = end
            known[block] = None
        while len(known) > self._limit:
            known.popitem(last=False)
        return cached
