"""Truncation: drop the oldest items of a conversation that does not fit into the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from antiphon.application.ports import Turn
from antiphon.application.support.threads import WALK_BYTES, run_in_thread
from antiphon.domain.conversation import droppable_groups

RESERVED_CONTEXT_DIVISOR = 4
"""With `truncation: auto`, at most 1/4 of the context is reserved for the answer."""

T = TypeVar("T")


async def longest_that_fits(
    turn: Turn, render_if_short: Callable[[Turn], Awaitable[T | None]]
) -> tuple[Turn, T] | None:
    """Return the turn with the fewest oldest items dropped, and how it was rendered.

    `render_if_short` returns None for a turn that is too long. None if dropping all items that the
    conversation rules allow to drop does not help.
    """
    # Bisect: that takes one rendering per step, not one per item.
    size = WALK_BYTES * len(turn.items)
    groups = await run_in_thread(size, droppable_groups, turn.items)
    low, high = 1, len(groups)
    best: tuple[Turn, T] | None = None
    while low <= high:
        count = (low + high) // 2
        shorter_turn = await run_in_thread(size, _without, turn, groups[:count])
        rendered = await render_if_short(shorter_turn)
        if rendered is not None:
            best, high = (shorter_turn, rendered), count - 1
        else:
            low = count + 1
    return best


def _without(turn: Turn, groups: Sequence[frozenset[int]]) -> Turn:
    dropped = frozenset().union(*groups)
    return replace(turn, items=[item for n, item in enumerate(turn.items) if n not in dropped])


def reserved_tokens(turn: Turn, context_length: int) -> int:
    """Return how many tokens of the context truncation leaves free for the answer."""
    limit = context_length // RESERVED_CONTEXT_DIVISOR
    return max(1, min(turn.sampling.max_tokens or limit, limit))
