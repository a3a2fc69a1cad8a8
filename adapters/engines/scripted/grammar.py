"""Small texts that a regular expression or a Lark grammar accepts: best effort, never raising.

Both are read into nothing: an expression is walked as Python's own parser gives it, a grammar as a
list of tokens, and each step returns the shortest text that it knows. None means: no text known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

_LONGEST = 100_000
"""Characters of what is written for a client's expression."""


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
    text = smallest_match(definition, whole=True) if syntax == "regex" else _Lark(definition).text()
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
        text = _Walk(extra).sequence(import_module("re._parser").parse(pattern))
        matches = re.fullmatch if whole else re.search
        return text if matches(pattern, text) else None
    except (re.error, OverflowError, RecursionError, ValueError):
        return None


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


# --- Lark -----------------------------------------------------------------------------------------

_RULE = re.compile(r"^[?!]*(\w+)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_IMPORT = re.compile(r"^%import[ \t]+[\w.]*?(\w+)(?:[ \t]*->[ \t]*(\w+))?[ \t]*$", re.MULTILINE)
_NOT_RULES = re.compile(r"^[ \t]*(?://.*|%.*)$", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*")i?|/(?P<regex>(?:\\.|[^/\\])+)/[a-z]*"""
    r"""|->\s*\w+|~\s*(?P<times>\d+)(?:\s*\.\.\s*\d+)?|(?P<name>\w+)|(?P<mark>\.\.|[()\[\]|?*+])"""
)
_IMPORTED: Mapping[str, str] = {
    "LF": "\n",
    "NEWLINE": "\n",
    "CR": "\r",
    "WS": " ",
    "WS_INLINE": " ",
    "ESCAPED_STRING": '""',
    "SIGNED_FLOAT": "0.0",
    "FLOAT": "0.0",
    "DECIMAL": "0.0",
    **dict.fromkeys(("DIGIT", "HEXDIGIT", "INT", "SIGNED_INT", "NUMBER", "SIGNED_NUMBER"), "0"),
    **dict.fromkeys(("LETTER", "LCASE_LETTER", "WORD", "CNAME"), "a"),
    "UCASE_LETTER": "A",
}


class _Lark:
    """A grammar's rules, and the shortest text of each as far as it is known."""

    def __init__(self, definition: str) -> None:
        self._texts: dict[str, str | None] = {
            alias or name: _IMPORTED.get(name) for name, alias in _IMPORT.findall(definition)
        }
        _, *pieces = _RULE.split(_NOT_RULES.sub("", definition))
        self._rules = {
            name: list(_TOKEN.finditer(body))
            for name, body in zip(pieces[::2], pieces[1::2], strict=True)
        }

    def text(self) -> str | None:
        # A rule's text is known once those it needs are: each round makes at least one known.
        for _ in range(min(len(self._rules), 200)):
            before = dict(self._texts)
            for name, tokens in self._rules.items():
                text, _ = self._choice(tokens, 0)
                self._texts[name] = text
            if self._texts == before:
                break
        return self._texts.get("start")

    def _choice(self, tokens: Sequence[re.Match[str]], at: int) -> tuple[str | None, int]:
        """Return the shortest alternative from `at` on, and where its closing bracket is."""
        options: list[str | None] = []
        text, at = self._sequence(tokens, at)
        options.append(text)
        while at < len(tokens) and tokens[at]["mark"] == "|":
            text, at = self._sequence(tokens, at + 1)
            options.append(text)
        return min((option for option in options if option is not None), key=len, default=None), at

    def _sequence(self, tokens: Sequence[re.Match[str]], at: int) -> tuple[str | None, int]:
        parts: list[str | None] = []
        while at < len(tokens) and tokens[at]["mark"] not in (")", "]", "|"):
            token = tokens[at]
            at += 1
            if token["mark"] in ("?", "*"):
                parts[-1:] = [""]
            elif token["mark"] == "..":
                at += 1  # of a range, its first character will do
            elif token["times"] is not None:
                last = parts.pop() if parts else ""
                parts.append(None if last is None else last * min(int(token["times"]), 1000))
            elif token["mark"] in ("(", "["):
                text, at = self._choice(tokens, at)
                parts.append("" if token["mark"] == "[" else text)
                at += 1
            elif token["mark"] is None:
                parts.append(self._leaf(token))
        known = [part for part in parts if part is not None]
        text = "".join(known) if len(known) == len(parts) else None
        return (None if text is not None and len(text) > _LONGEST else text), at

    def _leaf(self, token: re.Match[str]) -> str | None:
        if token["string"] is not None:
            try:
                return str(json.loads(token["string"]))
            except ValueError:
                return None
        if token["regex"] is not None:
            return smallest_match(token["regex"], whole=True)
        if token["name"] is not None:
            return self._texts.get(token["name"])
        return ""  # an alias
