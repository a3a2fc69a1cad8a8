"""Truncation: drop the oldest items of a conversation that does not fit into the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from operator import neg
from typing import TypeVar

from msgspec.structs import replace

from antiphon.application.ports import Turn
from antiphon.application.support.lengths import length_of
from antiphon.application.support.threads import ITEM_BYTES, WALK_BYTES, run_in_thread
from antiphon.domain.history.conversation import droppable_groups
from antiphon.domain.items import Item

RESERVED_CONTEXT_DIVISOR = 4
"""With `truncation: auto`, at most 1/4 of the context is reserved for the answer."""

USUAL_CHARS_PER_TOKEN = 4
"""Only where the search starts."""

MAX_SLOW_STEPS = 2
"""Estimates that leave more than half of the range, before the search bisects it."""

T = TypeVar("T")


async def longest_that_fits(
    turn: Turn,
    render: Callable[[Turn], Awaitable[T]],
    *,
    limit: int,
    tokens_of: Callable[[T], int | None],
) -> tuple[Turn, T]:
    """Return the turn with the fewest oldest items dropped, and how it was rendered.

    `tokens_of` may return None for what has more than `limit` tokens. It is the whole turn if
    dropping all items that the conversation rules allow to drop does not help.
    """
    best = turn, await render(turn)
    tokens = tokens_of(best[1])
    if tokens is not None and tokens <= limit:
        return best
    walk_size = WALK_BYTES * len(turn.items)
    groups, lengths = await run_in_thread(ITEM_BYTES * len(turn.items), _measure, turn.items)
    search = _Search(lengths, limit)
    search.learn(0, tokens)
    while (dropped := search.next_number()) is not None:
        shorter_turn = await run_in_thread(walk_size, _without, turn, groups[:dropped])
        rendered = await render(shorter_turn)
        if search.learn(dropped, tokens_of(rendered)):
            best = shorter_turn, rendered
    return best


class _Search:
    """Finds the least number of groups to drop, with few tries: each one renders a prompt.

    `lengths` are of the text that is left without the first N groups. Between the nearest prompts
    that were counted, tokens are taken to follow the text (regula falsi). That is wrong where one
    text has more tokens than another, so the search bisects after slow steps.
    """

    def __init__(self, lengths: Sequence[int], limit: int) -> None:
        self._lengths = lengths
        self._limit = limit
        self._low, self._high = 0, len(lengths) - 1
        # Length and tokens of the longest prompt that fits, and of the shortest that does not.
        self._fitting: tuple[int, int] | None = None
        self._too_long: tuple[int, int] | None = None
        self._tries = self._slow_steps = 0

    def next_number(self) -> int | None:
        """Return the number of groups to drop in the next try, None if all is known."""
        if self._low > self._high:
            return None
        is_first = self._tries == 1
        can_estimate = is_first or self._fitting is not None or self._too_long is not None
        if not can_estimate or self._slow_steps >= MAX_SLOW_STEPS:
            return (self._low + self._high) // 2
        estimate = bisect_left(self._lengths, -self._estimate_length(), key=neg)
        return min(max(estimate, self._low), self._high)

    def learn(self, dropped: int, tokens: int | None) -> bool:
        """Learn how many tokens a try has, None if too many to count; return whether it fits."""
        size = self._high - self._low + 1
        fits = tokens is not None and tokens <= self._limit
        if tokens is not None and fits:
            self._high = dropped - 1
            self._fitting = self._lengths[dropped], tokens
        else:
            self._low = dropped + 1
            if tokens is not None:
                self._too_long = self._lengths[dropped], tokens
        is_slow = 2 * (self._high - self._low + 1) > size
        self._slow_steps = self._slow_steps + 1 if is_slow else 0
        self._tries += 1
        return fits

    def _estimate_length(self) -> float:
        """Return how much text has as many tokens as fit."""
        if self._fitting is not None and self._too_long is not None:
            (length, tokens), (longer, more) = self._fitting, self._too_long
            per_token = (longer - length) / max(1, more - tokens)
            return length + (self._limit - tokens) * per_token
        length, tokens = self._fitting or self._too_long or (USUAL_CHARS_PER_TOKEN, 1)
        return self._limit * length / max(1, tokens)


def _measure(items: Sequence[Item]) -> tuple[list[frozenset[int]], list[int]]:
    """Return what may be dropped, and how long the rest is without the first N of it."""
    groups = droppable_groups(items)
    lengths = [length_of(item) for item in items]
    dropped = (-sum(lengths[place] for place in group) for group in groups)
    return groups, list(accumulate(dropped, initial=sum(lengths)))


def _without(turn: Turn, groups: Sequence[frozenset[int]]) -> Turn:
    dropped = frozenset().union(*groups)
    return replace(turn, items=[item for n, item in enumerate(turn.items) if n not in dropped])


def reserved_tokens(turn: Turn, context_length: int) -> int:
    """Return how many tokens of the context truncation leaves free for the answer."""
    limit = context_length // RESERVED_CONTEXT_DIVISOR
    return max(1, min(turn.sampling.max_tokens or limit, limit))
