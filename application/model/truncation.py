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
from antiphon.domain.conversation import droppable_groups
from antiphon.domain.items import Item

RESERVED_CONTEXT_DIVISOR = 4
"""With `truncation: auto`, at most 1/4 of the context is reserved for the answer."""

USUAL_CHARS_PER_TOKEN = 4
"""Only where the search starts."""

T = TypeVar("T")


async def longest_that_fits(
    turn: Turn,
    render_if_short: Callable[[Turn], Awaitable[T | None]],
    *,
    limit: int,
    tokens_of: Callable[[T], int],
) -> tuple[Turn, T] | None:
    """Return the turn with the fewest oldest items dropped, and how it was rendered.

    `render_if_short` returns None for a turn of more than `limit` tokens. None if dropping all
    items that the conversation rules allow to drop does not help.
    """
    # Each step renders a prompt. The tokens of one that fits say how much text fits, so the search
    # is over soon. Every other step bisects, in case they mislead.
    walk_size = WALK_BYTES * len(turn.items)
    groups, kept_length = await run_in_thread(ITEM_BYTES * len(turn.items), _measure, turn.items)
    low, high = 1, len(groups)
    best: tuple[Turn, T] | None = None
    fitting_length = USUAL_CHARS_PER_TOKEN * float(limit)
    step = 0
    while low <= high:
        dropped = (low + high) // 2
        if step == 0 or step % 2:
            dropped = min(max(bisect_left(kept_length, -fitting_length, key=neg), low), high)
        shorter_turn = await run_in_thread(walk_size, _without, turn, groups[:dropped])
        rendered = await render_if_short(shorter_turn)
        if rendered is not None:
            best, high = (shorter_turn, rendered), dropped - 1
            fitting_length = kept_length[dropped] * limit / max(1, tokens_of(rendered))
        else:
            low = dropped + 1
        step += 1
    return best


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
