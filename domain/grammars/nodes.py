"""The parsed form of a grammar: rules by name, each a tree of these nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from msgspec import Struct

from antiphon.domain.errors import UnsupportedGrammar

Range = tuple[int, int]
"""Code points, first and last."""


class Text(Struct, frozen=True, gc=False):
    text: str


class Characters(Struct, frozen=True, gc=False):
    """One character of these sorted, disjoint ranges; without ranges, nothing matches."""

    ranges: tuple[Range, ...]


class Chain(Struct, frozen=True):
    parts: tuple[Node, ...]


class AnyOf(Struct, frozen=True):
    options: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """`part` repeated from `minimum` to `maximum` times; a `maximum` of None means no limit."""

    part: Node
    minimum: int = 0
    maximum: int | None = None


class Rule(Struct, frozen=True, gc=False):
    name: str


Node: TypeAlias = Text | Characters | Chain | AnyOf | Repeat | Rule


class Grammar(Struct, frozen=True):
    start: str
    rules: Mapping[str, Node]


EMPTY = Text("")


def chain(parts: Sequence[Node]) -> Node:
    """Return the sequence of the parts, with adjacent texts and single characters joined.

    >>> chain([Text("a"), EMPTY, Characters(((98, 98),))])
    Text(text='ab')
    """
    joined: list[Node] = []
    flat_parts = (
        inner for part in parts for inner in (part.parts if isinstance(part, Chain) else [part])
    )
    for part in map(_simplify, flat_parts):
        if isinstance(part, Text) and joined and isinstance(joined[-1], Text):
            joined[-1] = Text(joined[-1].text + part.text)
        elif part != EMPTY:
            joined.append(part)
    return Chain(tuple(joined)) if len(joined) > 1 else joined[0] if joined else EMPTY


def _simplify(node: Node) -> Node:
    match node:
        case Characters(((first, last),)) if first == last:
            return Text(chr(first))
    return node


def any_of(options: Sequence[Node]) -> Node:
    return options[0] if len(options) == 1 else AnyOf(tuple(options))


def repeat(part: Node, minimum: int, maximum: int | None) -> Node:
    return EMPTY if part == EMPTY or maximum == 0 else Repeat(_simplify(part), minimum, maximum)


Value = TypeVar("Value")
MAX_ROUNDS = 20
"""A rule usually stands above or below those that it uses, so a few rounds each way are enough."""


def fixed_point(
    grammar: Grammar, value_of: Callable[[Node, Mapping[str, Value]], Value | None]
) -> dict[str, Value]:
    """Return a value for each rule that has one, computed from the values of the rules it uses.

    `value_of` gets the values known so far and returns None if they are not enough.
    Raises: UnsupportedGrammar if the values are not stable after MAX_ROUNDS rounds.
    """
    values: dict[str, Value] = {}
    order = list(grammar.rules)
    for _ in range(MAX_ROUNDS):
        previous = dict(values)
        order.reverse()
        for name in order:
            value = value_of(grammar.rules[name], values)
            if value is not None:
                values[name] = value
        if values == previous:
            return values
    raise UnsupportedGrammar("rules that depend on each other in too many ways")
