"""The lengths of the texts of an expression, and the same expression within a length."""

from __future__ import annotations

from antiphon.domain.grammars import nodes as n

Lengths = tuple[int, int | None]
"""Of the shortest and the longest text, in characters; None if there is no longest one."""


def lengths_of(node: n.Node) -> Lengths:
    """Return the lengths of the texts that match a node without rules.

    >>> lengths_of(n.repeat(n.Text("ab"), 1, 3)), lengths_of(n.repeat(n.Text("a"), 0, None))
    ((2, 6), (0, None))
    """
    match node:
        case n.Text(text):
            return len(text), len(text)
        case n.Chain(parts):
            each = [lengths_of(part) for part in parts]
            longest = [most for _, most in each if most is not None]
            least = sum(least for least, _ in each)
            return least, sum(longest) if len(longest) == len(each) else None
        case n.AnyOf(options):
            each = [lengths_of(option) for option in options]
            longest = [most for _, most in each if most is not None]
            return min(least for least, _ in each), (
                max(longest) if len(longest) == len(each) else None
            )
        case n.Repeat(part, minimum, maximum):
            least, most = lengths_of(part)
            if most == 0:
                return 0, 0
            return least * minimum, None if maximum is None or most is None else most * maximum
    return 1, 1


def within(node: n.Node, low: int, high: int | None) -> n.Node | None:
    """Return a node of the texts that have `low` to `high` characters, None if none can be written.

    It can if at most one part repeats, texts of one length: in `[a-z]+`, and in `[A-Z][a-z]*-1`.

    >>> within(n.repeat(n.Characters(((97, 122),)), 1, None), 3, 5)
    Repeat(part=Characters(ranges=((97, 122),)), minimum=3, maximum=5)
    """
    least, most = lengths_of(node)
    if low <= least and (high is None or (most is not None and most <= high)):
        return node
    parts = node.parts if isinstance(node, n.Chain) else (node,)
    varying = [place for place, part in enumerate(parts) if len({*lengths_of(part)}) > 1]
    if len(varying) != 1 or not isinstance(repeated := parts[varying[0]], n.Repeat):
        return None
    size, longest = lengths_of(repeated.part)
    if size != longest or size == 0:
        return None
    fixed = sum(lengths_of(part)[0] for place, part in enumerate(parts) if place != varying[0])
    minimum = max(repeated.minimum, -((fixed - low) // size))
    limits = [repeated.maximum, None if high is None else (high - fixed) // size]
    maximum = min((each for each in limits if each is not None), default=None)
    if maximum is not None and maximum < minimum:
        return None
    bounded = n.repeat(repeated.part, minimum, maximum)
    return n.chain([*parts[: varying[0]], bounded, *parts[varying[0] + 1 :]])
