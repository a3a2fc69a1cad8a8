"""Which part of a prompt an earlier one had in common: a prefix cache that keeps no values."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 16
"""Tokens a block; a prefix is known in whole blocks, as in the engines that this one stands for."""


class PrefixCache:
    """Remembers the blocks of earlier prompts, the `limit` last used."""

    def __init__(self, limit: int = 65536) -> None:
        self._limit = limit
        self._known: dict[int, None] = {}

    def admit(self, token_ids: Sequence[int], *salt: str | None) -> int:
        """Return how many tokens an earlier prompt of this salt began with; remember this one.

        At least one token is always computed.

        >>> prefixes = PrefixCache()
        >>> prefixes.admit(range(40)), prefixes.admit([*range(20), 0, 0]), prefixes.admit(range(40))
        (0, 16, 32)
        """
        known, tokens = self._known, tuple(token_ids)
        cached, block = 0, hash(salt)
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            # A block is known by all that comes before it, too.
            block = hash((block, tokens[end - BLOCK : end]))
            if block in known:
                del known[block]  # to come back as the last used
                if cached == end - BLOCK and end < len(tokens):
                    cached = end
            known[block] = None
        while len(known) > self._limit:
            del known[next(iter(known))]
        return cached
