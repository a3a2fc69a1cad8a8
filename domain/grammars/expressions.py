r"""Parse regular expressions in the syntax that Rust and Python share.

They match whole texts, or, like `pattern` in a JSON Schema, some part of a text (`is_search`). Lazy
quantifiers are read like greedy ones, since they match the same texts. `.` is any character except
`\n`. Features that are not regular (look-around, backreferences) or that differ between the two
(brackets in a class) raise UnsupportedGrammar; all other errors raise InvalidGrammar. In a JSON
Schema, `\d` and `\w` are ASCII's, as in JavaScript.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import characters
from antiphon.domain.grammars import nodes as n

MAX_DEPTH = 30
"""The maximum depth of nested groups, which limits the parser's recursion."""

ESCAPES: Mapping[str, str] = {
    "n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0",
}  # fmt: skip
CODE_POINT_ESCAPES: Mapping[str, re.Pattern[str]] = {
    "x": re.compile(r"([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\}"),
    "u": re.compile(r"([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]{1,6})\}"),
    "U": re.compile(r"([0-9A-Fa-f]{8})|\{([0-9A-Fa-f]{1,6})\}"),
}
CLASSES = frozenset("dDsSwW")
ANCHORS = frozenset("AzZ")
UNSUPPORTED_ESCAPES = frozenset("bBpPX123456789kGRK")
FLAGS = frozenset("imsuU")
MAX_RANGES = 100_000
"""The maximum number of ranges in all character classes of one definition."""

MAX_DIGITS = 6
_BOUNDS: Mapping[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_QUANTIFIER = re.compile(r"[*+?]|\{(?:\d+,?|\d*,\d+)\}", re.ASCII)
_GROUP_OPENING = re.compile(
    r"\?(?:P?<(?![=!])\w+>|(?P<set>[a-zA-Z]*)(?:-(?P<unset>[a-zA-Z]+))?(?P<end>[:)]))"
)
_NOT_LINE_END = characters.complement(characters.one("\n"))
_ANY_TEXT = n.repeat(characters.ALL, 0, None)


class RangeBudget:
    r"""Limits the ranges in one definition's classes, since `\w` alone has hundreds."""

    def __init__(self, max_ranges: int = MAX_RANGES) -> None:
        self._max_ranges = max_ranges
        self._remaining = max_ranges

    @property
    def used(self) -> int:
        return self._max_ranges - self._remaining

    def spend(self, chars: n.Characters, *, is_any_case: bool) -> None:
        width = sum(last - first + 1 for first, last in chars.ranges)
        case_variants = min(width, characters.MAX_CASE_VARIANTS) if is_any_case else 0
        self._remaining -= len(chars.ranges) + case_variants
        if self._remaining < 0:
            raise UnsupportedGrammar("too many large classes")


def parse_expression(
    pattern: str,
    budget: RangeBudget,
    *,
    flags: str = "",
    offset: int = 0,
    is_search: bool = False,
) -> n.Node:
    """Return the parsed pattern; `offset` is its position in the text where errors are reported.

    With `is_search`, its whole texts are those in which the pattern matches some part.
    Raises: InvalidGrammar, UnsupportedGrammar.
    """
    parser = _Parser(pattern, budget, offset, is_search=is_search)
    return parser.parse(_checked_flags(frozenset(flags), offset))


def _checked_flags(flags: frozenset[str], at: int) -> frozenset[str]:
    if unknown := flags - FLAGS - {"l", "x", "a", "L"}:
        raise InvalidGrammar(f"unknown flags {''.join(sorted(unknown))!r}", at)
    if unsupported := flags - FLAGS:
        raise UnsupportedGrammar(f"the flags {''.join(sorted(unsupported))!r}")
    return flags


class _Parser:
    def __init__(self, pattern: str, budget: RangeBudget, offset: int, *, is_search: bool) -> None:
        self._pattern = pattern
        self._budget = budget
        self._offset = offset
        self._is_search = is_search
        self._at = 0

    def parse(self, flags: frozenset[str]) -> n.Node:
        node = self._parse_options(flags, depth=0)
        if self._at < len(self._pattern):
            raise self._error("a ')' without a '('")
        return node

    def _parse_options(self, flags: frozenset[str], depth: int) -> n.Node:
        """Parse alternatives up to a `)` or the end."""
        if depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} nested groups")
        options: list[n.Node] = []
        parts: list[n.Node] = []
        has_begun = has_ended = False  # after an anchor at the beginning, at the end
        is_part = self._is_search and not depth
        while self._at < len(self._pattern) and self._peek() != ")":
            char = self._next()
            anchor = self._parse_anchor(char)
            if char == "|":
                options.append(_option(parts, is_part and not has_begun, is_part and not has_ended))
                parts, has_begun, has_ended = [], False, False
            elif anchor:
                # At the ends an anchor changes nothing where whole texts are matched.
                if depth or (anchor == "^" and parts):
                    raise UnsupportedGrammar("an anchor inside the expression")
                has_begun = has_begun or anchor == "^"
                has_ended = has_ended or anchor == "$"
            elif has_ended:
                raise UnsupportedGrammar("more of the expression after an anchor at its end")
            elif char == "(":
                node, flags = self._parse_group(flags, depth)
                parts += self._parse_quantifier(node)
            else:
                parts += self._parse_quantifier(self._parse_single(char, flags))
        last = _option(parts, is_part and not has_begun, is_part and not has_ended)
        return n.any_of([*options, last])

    def _parse_anchor(self, char: str) -> str:
        """Return the anchor at `char` as `^` or `$`, an empty string if there is none."""
        if char == "\\" and self._peek() in ANCHORS:
            return "^" if self._next() == "A" else "$"
        return char if char in "^$" else ""

    def _parse_single(self, char: str, flags: frozenset[str]) -> n.Node:
        if char in "*+?":
            raise self._error(f"nothing to repeat before {char!r}", back=1)
        if char == ".":
            return characters.ALL if "s" in flags else _NOT_LINE_END
        if char == "[":
            return self._parse_class(flags)
        chars = self._parse_escape() if char == "\\" else characters.one(char)
        return self._apply_case(chars, flags)

    def _apply_case(self, chars: n.Characters, flags: frozenset[str]) -> n.Characters:
        is_any_case = "i" in flags
        self._budget.spend(chars, is_any_case=is_any_case)
        return characters.without_case(chars) if is_any_case else chars

    def _parse_group(self, flags: frozenset[str], depth: int) -> tuple[n.Node, frozenset[str]]:
        """Parse the group after a `(`; return it and the flags that apply after it."""
        start = self._at - 1
        inner_flags = flags
        if self._peek() == "?":
            opening = _GROUP_OPENING.match(self._pattern, self._at)
            if opening is None:
                if self._pattern[self._at + 1 : self._at + 2] in tuple("=!<>P(#"):
                    raise UnsupportedGrammar("a group that is not regular")
                raise self._error("an unknown kind of group")
            self._at = opening.end()
            set_flags = _checked_flags(frozenset(opening["set"] or ""), self._offset + start)
            unset_flags = _checked_flags(frozenset(opening["unset"] or ""), self._offset + start)
            inner_flags = (flags | set_flags) - unset_flags
            if opening["end"] == ")":
                return n.EMPTY, inner_flags
        node = self._parse_options(inner_flags, depth + 1)
        if self._at >= len(self._pattern):
            raise InvalidGrammar("a '(' without a ')'", self._offset + start)
        self._at += 1
        return node, flags

    def _parse_quantifier(self, node: n.Node) -> list[n.Node]:
        """Return the node as often as the quantifier after it says; nothing if it is empty."""
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is not None:
            self._at = quantifier.end()
            if self._peek() == "?":
                self._at += 1
            elif self._peek() in ("*", "+"):
                raise UnsupportedGrammar("a repetition of a repetition")
            node = apply_quantifier(node, quantifier[0], self._offset + quantifier.start())
        return [node] if node != n.EMPTY else []

    def _parse_escape(self) -> n.Characters:
        letter = self._next("an escape that is not finished")
        if letter in CLASSES:
            return characters.character_class(letter, is_ascii=self._is_search)
        if letter in UNSUPPORTED_ESCAPES:
            raise UnsupportedGrammar(rf"the escape \{letter}")
        if letter in CODE_POINT_ESCAPES:
            code = CODE_POINT_ESCAPES[letter].match(self._pattern, self._at)
            char = characters.from_hex(code[1] or code[2]) if code else None
            if code is None or char is None:
                raise self._error(rf"\{letter} without a valid code point")
            self._at = code.end()
            return characters.one(char)
        if letter in ESCAPES:
            return characters.one(ESCAPES[letter])
        if letter.isalnum():
            raise self._error(rf"the unknown escape \{letter}", back=1)
        return characters.one(letter)

    def _parse_class(self, flags: frozenset[str]) -> n.Characters:
        """Parse the class after a `[`.

        Case is ignored before taking the complement, so that `(?i)[^a]` does not match `A`.
        """
        start = self._at - 1
        is_negated = self._peek() == "^"
        self._at += is_negated
        members: list[n.Characters] = []
        while self._peek() != "]" or not members:
            if self._at >= len(self._pattern):
                raise InvalidGrammar("a '[' without a ']'", self._offset + start)
            members.append(self._apply_case(self._parse_member(), flags))
        self._at += 1
        chars = characters.union(members)
        return characters.complement(chars) if is_negated else chars

    def _parse_member(self) -> n.Characters:
        first = self._parse_member_character()
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return first
        self._at += 1
        if self._peek() == "-":
            raise UnsupportedGrammar("a difference of classes")
        last = self._parse_member_character()
        (low, low_end), (high, high_end) = first.ranges[0], last.ranges[-1]
        if low != low_end or high != high_end or len(first.ranges) + len(last.ranges) > 2:
            raise self._error("a range that does not go from one character to another")
        if low > high:
            raise self._error("a range that goes backwards")
        return n.Characters(((low, high),))

    def _parse_member_character(self) -> n.Characters:
        char = self._next("a '[' without a ']'")
        if char == "[" or (char in "&~" and self._peek() == char):
            raise UnsupportedGrammar("a class inside a class; write '\\[' for the character")
        return self._parse_escape() if char == "\\" else characters.one(char)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self, error_at_end: str = "") -> str:
        if self._at >= len(self._pattern):
            raise self._error(error_at_end)
        self._at += 1
        return self._pattern[self._at - 1]

    def _error(self, why: str, *, back: int = 0) -> InvalidGrammar:
        return InvalidGrammar(why, self._offset + self._at - back)


def _option(parts: list[n.Node], is_open_before: bool, is_open_after: bool) -> n.Node:
    """Return an alternative, with any text on its open sides."""
    return n.chain([_ANY_TEXT] * is_open_before + parts + [_ANY_TEXT] * is_open_after)


def apply_quantifier(node: n.Node, quantifier: str, at: int) -> n.Node:
    """Return the node repeated by `?`, `*`, `+`, `{n}`, `{n,}`, `{n,m}` or `{,m}`.

    Raises: InvalidGrammar, at `at`.
    """
    if quantifier in _BOUNDS:
        return n.repeat(node, *_BOUNDS[quantifier])
    low, comma, high = quantifier[1:-1].partition(",")
    if len(low) > MAX_DIGITS or len(high) > MAX_DIGITS or not low + high:
        raise InvalidGrammar("a repetition without valid bounds", at)
    minimum = int(low or 0)
    maximum = int(high) if high else None if comma else minimum
    if maximum is not None and maximum < minimum:
        raise InvalidGrammar("a repetition whose maximum is below its minimum", at)
    return n.repeat(node, minimum, maximum)
