"""Parse the grammars of custom tools, which say what the input of a call may be
(docs/reference/api.md#custom-tools).

Both syntaxes become the same tree (`nodes.py`). Formats turn it into a constraint, and the scripted
engine generates text from it. Definitions come from clients, so parsing limits their cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import nodes as n
from antiphon.domain.grammars.expressions import RangeBudget, parse_expression
from antiphon.domain.grammars.lark import parse_lark

__all__ = ["Grammar", "check_pattern", "read"]

Grammar = n.Grammar

MAX_DEFINITION_CHARS = 32_768
MAX_SIZE = 20_000
"""The maximum number of characters and rules in a grammar with its repetitions written out."""


MAX_CACHED_GRAMMARS = 12
"""Their trees take some 10 MB at the most: up to 23 bytes for each character."""


@lru_cache(maxsize=MAX_CACHED_GRAMMARS)
def read(syntax: str, definition: str) -> Grammar | None:
    """Return the grammar without the parts that never match, None if no engine can enforce it.

    `syntax` is lark, regex, or pattern: a JSON Schema's, which is found anywhere in a text.
    Results are cached, since clients send the same definitions again. Raises: InvalidGrammar.
    """
    if len(definition) > MAX_DEFINITION_CHARS:
        raise InvalidGrammar(f"more than {MAX_DEFINITION_CHARS} characters", MAX_DEFINITION_CHARS)
    try:
        return _live(_parse(syntax, definition))
    except UnsupportedGrammar:
        return None


MAX_CHECKED_PATTERNS = 512
"""As long as a schema's patterns may be together, they take some 4 MB at the most."""


@lru_cache(maxsize=MAX_CHECKED_PATTERNS)
def check_pattern(pattern: str) -> tuple[bool, int]:
    """Return whether an engine can enforce a JSON Schema's pattern, and the ranges in its classes.

    Results are cached: a schema is checked, and read again for each of its uses.
    Raises: InvalidGrammar.
    """
    budget = RangeBudget()
    try:
        node = parse_expression(pattern, budget, is_search=True)
        _live(_bounded(Grammar("start", {"start": node})))
    except UnsupportedGrammar:
        return False, budget.used
    return True, budget.used


def _live(grammar: Grammar) -> Grammar:
    """Return the grammar without the parts that never match. Raises: InvalidGrammar."""
    matching = n.fixed_point(grammar, _can_match)
    if grammar.start not in matching:
        raise InvalidGrammar("no text matches", 0)
    rules = {
        name: _prune(node, matching) for name, node in grammar.rules.items() if name in matching
    }
    return Grammar(grammar.start, rules)


def _parse(syntax: str, definition: str) -> Grammar:
    if syntax == "lark":
        grammar = parse_lark(definition)
    else:
        is_search = syntax == "pattern"
        node = parse_expression(definition, RangeBudget(), is_search=is_search)
        grammar = Grammar("start", {"start": node})
    return _bounded(grammar)


def _bounded(grammar: Grammar) -> Grammar:
    if sum(map(_size_of, grammar.rules.values())) > MAX_SIZE:
        raise UnsupportedGrammar("a grammar of that size")
    return grammar


def _size_of(node: n.Node) -> int:
    match node:
        case n.Text(text):
            return len(text)
        case n.Chain(parts) | n.AnyOf(parts):
            return sum(map(_size_of, parts))
        case n.Repeat(part, minimum, maximum):
            return _size_of(part) * max(maximum or minimum, 1)
    return 1


def _can_match(node: n.Node, matching: Mapping[str, bool]) -> bool | None:
    """Return whether some text matches the node, given the rules known to match some text."""
    match node:
        case n.Characters(ranges):
            return bool(ranges) or None
        case n.Chain(parts):
            return all(_can_match(part, matching) for part in parts) or None
        case n.AnyOf(options):
            return any(_can_match(option, matching) for option in options) or None
        case n.Repeat(part, minimum):
            return minimum == 0 or _can_match(part, matching)
        case n.Rule(name):
            return matching.get(name)
    return True


def _prune(node: n.Node, matching: Mapping[str, bool]) -> n.Node:
    """Return the node without options that match no text, at which an engine would get stuck."""
    match node:
        case n.AnyOf(options):
            live = [_prune(option, matching) for option in options if _can_match(option, matching)]
            return n.any_of(live)
        case n.Chain(parts):
            return n.chain([_prune(part, matching) for part in parts])
        case n.Repeat(part, minimum, maximum):
            if not _can_match(part, matching):
                return n.EMPTY
            return n.repeat(_prune(part, matching), minimum, maximum)
    return node
