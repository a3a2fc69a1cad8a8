"""What a grammar is once it is read: rules by name, each a tree of these nodes."""

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
    """One character of these ranges, which are in order and apart; without any, nothing matches."""

    ranges: tuple[Range, ...]


class Chain(Struct, frozen=True):
    parts: tuple[Node, ...]


class AnyOf(Struct, frozen=True):
    options: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """`part` from `least` to `most` times; None is without end."""

    part: Node
    least: int = 0
    most: int | None = None


class Rule(Struct, frozen=True, gc=False):
    name: str


Node: TypeAlias = Text | Characters | Chain | AnyOf | Repeat | Rule


class Grammar(Struct, frozen=True):
    start: str
    rules: Mapping[str, Node]


EMPTY = Text("")


def chain(parts: Sequence[Node]) -> Node:
    """Return the parts in a row, with characters that can only be one written as text.

    >>> chain([Text("a"), EMPTY, Characters(((98, 98),))])
    Text(text='ab')
    """
    joined: list[Node] = []
    spliced = (
        inner for part in parts for inner in (part.parts if isinstance(part, Chain) else [part])
    )
    for part in map(_plain, spliced):
        if isinstance(part, Text) and joined and isinstance(joined[-1], Text):
            joined[-1] = Text(joined[-1].text + part.text)
        elif part != EMPTY:
            joined.append(part)
    return Chain(tuple(joined)) if len(joined) > 1 else joined[0] if joined else EMPTY


def _plain(node: Node) -> Node:
    match node:
        case Characters(((first, last),)) if first == last:
            return Text(chr(first))
    return node


def any_of(options: Sequence[Node]) -> Node:
    return options[0] if len(options) == 1 else AnyOf(tuple(options))


def repeat(part: Node, least: int, most: int | None) -> Node:
    return EMPTY if part == EMPTY or most == 0 else Repeat(_plain(part), least, most)


Value = TypeVar("Value")
MOST_ROUNDS = 20
"""Rules stand above or below those that they need, so few rounds in both directions do."""


def fixed_point(
    grammar: Grammar, value_of: Callable[[Node, Mapping[str, Value]], Value | None]
) -> dict[str, Value]:
    """Return a value for each rule that has one, found from those of the rules that it needs.

    `value_of` gets the values known so far; None says that it needs more.
    Raises: UnsupportedGrammar for rules that are so entangled that the rounds do not suffice.
    """
    known: dict[str, Value] = {}
    order = list(grammar.rules)
    for _ in range(MOST_ROUNDS):
        before = dict(known)
        order.reverse()
        for name in order:
            value = value_of(grammar.rules[name], known)
            if value is not None:
                known[name] = value
        if known == before:
            return known
    raise UnsupportedGrammar("rules that are entangled so much")
