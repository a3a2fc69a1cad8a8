"""Match texts against a pattern that was parsed, for the patterns that clients write.

Python's `re` tries the ways to match one after the other, and there may be more than anybody can
wait for. Here all ways go through the text together: a node maps the places where it may begin to
those where it may end, so each is looked at once, and every place is paid for.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.domain.errors import UnsupportedGrammar
from antiphon.domain.grammars import characters
from antiphon.domain.grammars import nodes as n
from antiphon.domain.grammars.expressions import RangeBudget, parse_expression

Spend = Callable[[int], None]
"""Pays for a number of steps of about a microsecond, or raises when there are none left."""

MAX_PATTERN_CHARS = 10_000
MAX_PATTERN_RANGES = 20_000
"""Ranges in the character classes of a pattern, which is parsed in some 20 ms at the most."""


def parse_pattern(pattern: str, spend: Spend) -> n.Node | None:
    r"""Return the texts in which a pattern of JSON Schema matches some part.

    None for a pattern that is too long or not regular (look-around, backreferences).
    Raises: InvalidGrammar, and whatever `spend` raises.

    >>> pattern = parse_pattern(r"^(a+)+$", int)
    >>> has_match(pattern, "aaa", int), has_match(pattern, "aaa!", int)
    (True, False)
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        return None
    spend(2 * len(pattern))
    budget = RangeBudget(MAX_PATTERN_RANGES)
    try:
        return parse_expression(pattern, budget, is_search=True)
    except UnsupportedGrammar:
        return None
    finally:
        spend(budget.used)


def has_match(node: n.Node, text: str, spend: Spend) -> bool:
    """Return whether the whole text matches the node, which has no rules in it.

    Raises: whatever `spend` raises.
    """
    return len(text) in _ends(node, text, {0}, spend)


def _ends(node: n.Node, text: str, starts: set[int], spend: Spend) -> set[int]:
    """Return where a match that begins at one of `starts` may end."""
    spend(1 + len(starts))
    match node:
        case n.Text(part):
            return {start + len(part) for start in starts if text.startswith(part, start)}
        case n.Characters():
            return {
                start + 1
                for start in starts
                if start < len(text) and characters.contains(node, text[start])
            }
        case n.Chain(parts):
            for part in parts:
                starts = _ends(part, text, starts, spend)
            return starts
        case n.AnyOf(options):
            return set().union(*(_ends(option, text, starts, spend) for option in options))
        case n.Repeat(part, minimum, maximum):
            return _ends_of_repeat(part, minimum, maximum, text, starts, spend)
    raise TypeError(f"{type(node).__name__} is not of a pattern")


def _ends_of_repeat(
    part: n.Node, minimum: int, maximum: int | None, text: str, starts: set[int], spend: Spend
) -> set[int]:
    for _ in range(minimum):
        if not starts:
            break
        starts = _ends(part, text, starts, spend)
    # What is reached again after more repetitions leads nowhere else.
    reached, times = set(starts), minimum
    while starts and times != maximum:
        starts = _ends(part, text, starts, spend) - reached
        reached |= starts
        times += 1
    return reached
