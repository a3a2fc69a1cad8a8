"""Small texts that a grammar or a schema's pattern accepts: best effort, never raising.

A grammar is walked as the domain reads it, a pattern, which may look around, as Python's own parser
gives it; each step returns the shortest text that it knows. None means: no text known. No pattern
is run by Python's matcher, which could try one text for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from antiphon.adapters.engines.scripted.step_budget import OutOfSteps, StepBudget
from antiphon.domain import grammars
from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import characters
from antiphon.domain.grammars import nodes as n

_LONGEST = 100_000
"""Characters of what is written for a client's expression."""

_LONGEST_PATTERN = 10_000
"""Characters of a pattern: Python's parser takes quadratic time for equal alternatives."""

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
    try:
        text = _sentence(syntax, definition, StepBudget())
        if text is None and syntax == "regex":
            # Look-around and the like: more than binds an engine can still be written.
            text = next(small_matches(definition, (0,), StepBudget()), None)
    except OutOfSteps:
        text = None
    return "x" if text is None else text


# --- regular expressions --------------------------------------------------------------------------

_POOL = "a0A_- .:/@\n" + "".join(map(chr, range(33, 127)))
"""Characters to try for a class, the plainest first."""

_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,8})\}|.)", re.DOTALL)

_CATEGORIES: Mapping[str, str] = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def small_matches(pattern: str, extras: Iterable[int], steps: StepBudget) -> Iterator[str]:
    """Yield a text for each of `extras`, the times that open repetitions are longer than they must.

    It matches the pattern unless that looks around, or has an anchor within.
    Raises: OutOfSteps.

    >>> list(small_matches("^(yes|no)+$", range(2), StepBudget()))
    ['no', 'nono']
    """
    if len(pattern) > _LONGEST_PATTERN:
        return
    steps.spend(2 * len(pattern))
    try:
        parsed = import_module("re._parser").parse(_ESCAPE.sub(_in_python, pattern))
        for extra in extras:
            yield _Walk(extra, steps).sequence(parsed)
    except (re.error, OverflowError, RecursionError, ValueError):
        return


def _in_python(escape: re.Match[str]) -> str:
    """Return an escape in Python's spelling: JavaScript has `\\u{1F600}`."""
    return escape[0] if escape[1] is None else rf"\U{int(escape[1], 16):08x}"


class _Walk:
    """Writes while it walks; remembers groups for references to them."""

    def __init__(self, extra: int, steps: StepBudget) -> None:
        self._extra = extra
        self._steps = steps
        self._groups: dict[int, str] = {}

    def sequence(self, items: Iterable[tuple[Any, Any]]) -> str:
        texts: list[str] = []
        length = 0
        for op, value in items:
            texts.append(self._one(str(op), value))
            self._steps.spend_on_text(len(texts[-1]))
            length += len(texts[-1])
            if length > _LONGEST:
                raise OverflowError
        return "".join(texts)

    def _one(self, op: str, value: Any) -> str:
        match op:
            case "LITERAL":
                return chr(value)
            case "NOT_LITERAL":
                return _first(lambda char: char != chr(value))
            case "ANY":
                return "a"
            case "IN":
                self._steps.spend(len(_POOL) * len(value) // 2)
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
        self._steps.spend_on_text(len(text) * times)
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


def _sentence(syntax: str, definition: str, steps: StepBudget) -> str | None:
    try:
        read = grammars.read(syntax, definition)
        smallest = partial(_smallest, steps=steps)
        return n.fixed_point(read, smallest).get(read.start) if read else None
    except (InvalidGrammar, UnsupportedGrammar):
        return None


def _smallest(node: n.Node, known: Mapping[str, str], *, steps: StepBudget) -> str | None:
    """Return the smallest text of a node, as far as those of the rules in it are known."""
    text = _smallest_of(node, known, steps)
    steps.spend_on_text(len(text or ""))
    return text


def _smallest_of(node: n.Node, known: Mapping[str, str], steps: StepBudget) -> str | None:
    smallest = partial(_smallest, known=known, steps=steps)
    match node:
        case n.Text(text):
            return text
        case n.Characters(ranges):
            return _first(partial(characters.contains, node)) or (
                chr(ranges[0][0]) if ranges else None
            )
        case n.Chain(parts):
            return _joined([smallest(part) for part in parts])
        case n.AnyOf(options):
            texts = [smallest(option) for option in options]
            return min((text for text in texts if text is not None), key=len, default=None)
        case n.Repeat(part, least):
            return _joined([smallest(part)] * least)
        case n.Rule(name):
            return known.get(name)


def _joined(texts: Sequence[str | None]) -> str | None:
    known = [text for text in texts if text is not None]
    is_known = len(known) == len(texts) and sum(map(len, known)) <= _LONGEST_SENTENCE
    return "".join(known) if is_known else None
