"""Small texts that a grammar or a schema's pattern accepts: best effort, never raising.

A grammar is walked as the domain reads it, a pattern, which may look around, as Python's own parser
gives it; each step returns the shortest text that it knows. None means: no text known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from math import log2
from typing import Any

from antiphon.domain import grammars
from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import nodes as n

_LONGEST = 100_000
"""Characters of what is written for a client's expression."""

_LONGEST_TRIED = 16
"""Characters of a text that Python's matcher may try."""

_LONGEST_PATTERN_TRIED = 2_000
"""Characters of its pattern: with 200,000, it ended the process."""

_MOST_STEPS_TRIED = 10_000
"""Steps of one way through the pattern, each repetition as often as it must be."""

_MOST_TRIES_LOG2 = 17
"""Ways to divide the text among the repetitions of the pattern: 2 to that power."""

_LONGEST_SENTENCE = 10_000
"""Characters of each rule of a grammar."""


def smallest_input(grammar: tuple[str, str] | None) -> str:
    """Return a short input for a custom tool with this grammar, as (syntax, definition).

    >>> smallest_input(None), smallest_input(("regex", "[a-z ]+"))
    ('x', 'a')
    >>> smallest_input(("lark", 'start: "add" WS NUMBER\\nNUMBER: /[0-9]+/\\nWS: " "'))
    'add 0'
    """
    if grammar is None:
        return "x"
    syntax, definition = grammar
    text = _sentence(syntax, definition)
    if text is None and syntax == "regex":
        # Look-around and the like: more than binds an engine can still be written.
        text = smallest_match(definition, whole=True)
    return "x" if text is None else text


# --- regular expressions --------------------------------------------------------------------------

_POOL = "a0A_- .:/@\n" + "".join(map(chr, range(33, 127)))
"""Characters to try for a class, the plainest first."""

_CATEGORIES: Mapping[str, str] = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def smallest_match(pattern: str, *, extra: int = 0, whole: bool = False) -> str | None:
    """Return a text that the pattern matches, each open repetition `extra` longer than it must be.

    >>> smallest_match(r"^[A-Z]{3}-\\d+$"), smallest_match("(yes|no)+", extra=1)
    ('AAA-0', 'nono')
    """
    try:
        parsed = import_module("re._parser").parse(pattern)
        text = _Walk(extra).sequence(parsed)
        # Otherwise it is taken as it was walked: a client's pattern could try a text for ever.
        if not _can_try(text, pattern, parsed):
            return text
        matches = re.fullmatch if whole else re.search
        return text if matches(pattern, text) else None
    except (re.error, OverflowError, RecursionError, ValueError):
        return None


def _can_try(text: str, pattern: str, parsed: Sequence[tuple[Any, Any]]) -> bool:
    return (
        len(text) <= _LONGEST_TRIED
        and len(pattern) <= _LONGEST_PATTERN_TRIED
        and _count(parsed, plain=1) <= _MOST_STEPS_TRIED
        and len(text) * log2(_count(parsed, plain=0) + 1) <= _MOST_TRIES_LOG2
    )


def _count(items: Iterable[tuple[Any, Any]], *, plain: int) -> int:
    """Return how many repetitions and branches there are to which a character may belong.

    `plain` is what any other step counts.
    """
    return sum(_count_of(str(op), value, plain) for op, value in items)


def _count_of(op: str, value: Any, plain: int) -> int:
    match op:
        case "BRANCH":
            return len(value[1]) + sum(_count(branch, plain=plain) for branch in value[1])
        case "SUBPATTERN":
            return _count(value[3], plain=plain)
        case "ATOMIC_GROUP":
            return _count(value, plain=plain)
        case "ASSERT" | "ASSERT_NOT":
            return _count(value[1], plain=plain)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, items = value
            return _count(items, plain=plain) * max(int(least), 1) + int(most != least)
        case "GROUPREF_EXISTS":
            return sum(_count(part, plain=plain) for part in value[1:] if part)
    return plain


class _Walk:
    """Writes while it walks; remembers groups for references to them."""

    def __init__(self, extra: int) -> None:
        self._extra = extra
        self._groups: dict[int, str] = {}

    def sequence(self, items: Iterable[tuple[Any, Any]]) -> str:
        text = "".join(self._one(str(op), value) for op, value in items)
        if len(text) > _LONGEST:
            raise OverflowError
        return text

    def _one(self, op: str, value: Any) -> str:
        match op:
            case "LITERAL":
                return chr(value)
            case "NOT_LITERAL":
                return _first(lambda char: char != chr(value))
            case "ANY":
                return "a"
            case "IN":
                return _first(lambda char: _is_in(char, value), _members(value))
            case "BRANCH":
                return min((self.sequence(branch) for branch in value[1]), key=len)
            case "SUBPATTERN":
                text = self.sequence(value[3])
                self._groups[value[0]] = text
                return text
            case "ATOMIC_GROUP":
                return self.sequence(value)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, items = value
                return self._repeated(self.sequence(items), min(int(most), least + self._extra))
            case "GROUPREF":
                return self._groups.get(value, "")
        return ""  # what has no width: anchors and look-arounds

    def _repeated(self, text: str, times: int) -> str:
        if len(text) * times > _LONGEST:
            raise OverflowError
        return text * times


def _first(fits: Callable[[str], bool], more: Iterable[str] = ()) -> str:
    return next((char for char in (*_POOL, *more) if fits(char)), "")


def _members(members: Sequence[tuple[Any, Any]]) -> Iterator[str]:
    for op, value in members:
        if str(op) == "LITERAL":
            yield chr(value)
        elif str(op) == "RANGE":
            yield chr(value[0])


def _is_in(char: str, members: Sequence[tuple[Any, Any]]) -> bool:
    is_negated = bool(members) and str(members[0][0]) == "NEGATE"
    return is_negated != any(_is_member(char, str(op), value) for op, value in members)


def _is_member(char: str, op: str, value: Any) -> bool:
    match op:
        case "LITERAL":
            return bool(ord(char) == value)
        case "RANGE":
            return bool(value[0] <= ord(char) <= value[1])
        case "CATEGORY":
            return re.match(_CATEGORIES[str(value)], char) is not None
    return False


# --- grammars -------------------------------------------------------------------------------------


def _sentence(syntax: str, definition: str) -> str | None:
    try:
        read = grammars.read(syntax, definition)
        return n.fixed_point(read, _smallest).get(read.start) if read else None
    except (InvalidGrammar, UnsupportedGrammar):
        return None


def _smallest(node: n.Node, known: Mapping[str, str]) -> str | None:
    """Return the smallest text of a node, as far as those of the rules in it are known."""
    match node:
        case n.Text(text):
            return text
        case n.Characters(ranges):
            return _first(lambda char: any(a <= ord(char) <= b for a, b in ranges)) or (
                chr(ranges[0][0]) if ranges else None
            )
        case n.Chain(parts):
            return _joined([_smallest(part, known) for part in parts])
        case n.AnyOf(options):
            texts = [_smallest(option, known) for option in options]
            return min((text for text in texts if text is not None), key=len, default=None)
        case n.Repeat(part, least):
            return _joined([_smallest(part, known)] * least)
        case n.Rule(name):
            return known.get(name)


def _joined(texts: Sequence[str | None]) -> str | None:
    known = [text for text in texts if text is not None]
    is_known = len(known) == len(texts) and sum(map(len, known)) <= _LONGEST_SENTENCE
    return "".join(known) if is_known else None
