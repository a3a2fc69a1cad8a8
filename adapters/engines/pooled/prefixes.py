"""Which prefixes of prompts a server has probably cached.

A prompt is cut into blocks as in vLLM, and the hash of a block covers all blocks before it. So a
known hash says that the server has seen the whole prefix up to there. It is an estimate: the server
drops blocks when its memory is full, and other clients fill it, too. An error costs time alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""vLLM's default. A server with larger blocks caches a little less than is expected here."""

BYTES_PER_BLOCK = 240
"""Of memory here, measured: the hash and its entry."""


def block_hashes(token_ids: Sequence[int], salt: str | None) -> list[int]:
    """Return the hashes of the whole blocks of a prompt, as cached for this salt.

    >>> a, b = block_hashes(range(40), None), block_hashes([*range(16), *range(50, 90)], None)
    >>> len(a), len(b), a[0] == b[0], a[1] == b[1]
    (2, 3, True, False)
    """
    tokens = tuple(token_ids)
    block, hashes = hash(salt), []
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        block = hash((block, tokens[end - BLOCK_TOKENS : end]))
        hashes.append(block)
    return hashes


class PrefixIndex:
    """The blocks that one server has seen: an LRU cache of at most `max_bytes`."""

    def __init__(self, max_bytes: float) -> None:
        self._limit = max(1, int(max_bytes / BYTES_PER_BLOCK))
        # The first entries of a plain dict take long to find after many were deleted there.
        self._known: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def match(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks are known."""
        known = self._known
        return next((n for n, block in enumerate(hashes) if block not in known), len(hashes))

    def add(self, hashes: Sequence[int]) -> None:
        known = self._known
        # From the last on, so that the beginnings, which many prompts share, are dropped last.
        for block in reversed(hashes):
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._limit:
            known.popitem(last=False)

    def clear(self) -> None:
        self._known.clear()
