"""Grammars of custom tools, read: which texts may a call's input be?
(docs/reference/api.md#custom-tools)

Both syntaxes become the same tree (`nodes.py`), from which a format writes its constraint and the
scripted engine a sentence. A definition is a client's: what it may cost is bounded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import nodes as n
from antiphon.domain.grammars.expressions import Allowance, read_expression
from antiphon.domain.grammars.lark import read_lark

__all__ = ["Grammar", "read"]

Grammar = n.Grammar

MOST_CHARACTERS = 32_768
"""Of a definition."""

MOST_POSITIONS = 20_000
"""Characters and rules that stand in a grammar once its repetitions are written out."""


@lru_cache(maxsize=32)
def read(syntax: str, definition: str) -> Grammar | None:
    """Return the grammar without what can never match, or None if no engine of ours can enforce it.

    Clients send the same definition again and again. Raises: InvalidGrammar.
    """
    if len(definition) > MOST_CHARACTERS:
        raise InvalidGrammar(f"more than {MOST_CHARACTERS} characters", MOST_CHARACTERS)
    try:
        grammar = _as_written(syntax, definition)
        live = n.fixed_point(grammar, _lives)
    except UnsupportedGrammar:
        return None
    if grammar.start not in live:
        raise InvalidGrammar("no text matches", 0)
    rules = {name: _pruned(node, live) for name, node in grammar.rules.items() if name in live}
    return Grammar(grammar.start, rules)


def _as_written(syntax: str, definition: str) -> Grammar:
    if syntax == "lark":
        grammar = read_lark(definition)
    else:
        grammar = Grammar("start", {"start": read_expression(definition, Allowance())})
    if sum(map(_positions, grammar.rules.values())) > MOST_POSITIONS:
        raise UnsupportedGrammar("a grammar of that size")
    return grammar


def _positions(node: n.Node) -> int:
    match node:
        case n.Text(text):
            return len(text)
        case n.Chain(parts) | n.AnyOf(parts):
            return sum(map(_positions, parts))
        case n.Repeat(part, least, most):
            return _positions(part) * max(most or least, 1)
    return 1


def _lives(node: n.Node, live: Mapping[str, bool]) -> bool | None:
    """Say whether some text matches, as far as it is known of the rules."""
    match node:
        case n.Characters(ranges):
            return bool(ranges) or None
        case n.Chain(parts):
            return all(_lives(part, live) for part in parts) or None
        case n.AnyOf(options):
            return any(_lives(option, live) for option in options) or None
        case n.Repeat(part, least):
            return least == 0 or _lives(part, live)
        case n.Rule(name):
            return live.get(name)
    return True


def _pruned(node: n.Node, live: Mapping[str, bool]) -> n.Node:
    """Return the node without options that lead nowhere: an engine would stop in front of them."""
    match node:
        case n.AnyOf(options):
            return n.any_of([_pruned(option, live) for option in options if _lives(option, live)])
        case n.Chain(parts):
            return n.chain([_pruned(part, live) for part in parts])
        case n.Repeat(part, least, most):
            return n.repeat(_pruned(part, live), least, most) if _lives(part, live) else n.EMPTY
    return node
