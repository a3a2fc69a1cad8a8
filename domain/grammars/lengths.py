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
    """Return a node of texts that have `low` to `high` characters, None if none can be written.

    It can if each part that varies repeats texts of one length, as all do in `[A-Z][a-z]*-[0-9]+`.
    They are all that there are if one part varies; several have equal shares of the longest text.

    >>> letter = n.Characters(((97, 122),))
    >>> within(n.repeat(letter, 1, None), 3, 5)
    Repeat(part=Characters(ranges=((97, 122),)), minimum=3, maximum=5)
    """
    least, most = lengths_of(node)
    if low <= least and (high is None or (most is not None and most <= high)):
        return node
    parts = list(node.parts if isinstance(node, n.Chain) else (node,))
    varying = [place for place, part in enumerate(parts) if len({*lengths_of(part)}) > 1]
    free = None if high is None else high - least
    if not varying or (free is not None and free < 0):
        return None
    missing = low - least
    for number, place in enumerate(varying):
        part = parts[place]
        size, longest = lengths_of(part.part) if isinstance(part, n.Repeat) else (0, None)
        if not isinstance(part, n.Repeat) or size != longest or size == 0:
            return None
        share = None if free is None else free // (len(varying) - number) // size
        limits = [part.maximum, None if share is None else part.minimum + share]
        maximum = min((each for each in limits if each is not None), default=None)
        added = max(0, -(-missing // size))
        if maximum is not None:
            added = min(added, maximum - part.minimum)
            free = None if free is None else free - (maximum - part.minimum) * size
        missing -= added * size
        parts[place] = n.repeat(part.part, part.minimum + added, maximum)
    return n.chain(parts) if missing <= 0 else None
