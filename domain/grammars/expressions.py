r"""Reads regular expressions: what Rust's syntax and Python's share, matched as a whole.

Laziness does not change which whole texts match, so it is read over. `.` is any character but
`\n`. What is known but not regular (look-around, references back) or not the same in both
(brackets in a class) is UnsupportedGrammar; all else is InvalidGrammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import characters
from antiphon.domain.grammars import nodes as n

MOST_DEPTH = 30
"""Groups inside each other: a reader that calls itself must not be led too deep."""

ESCAPED: Mapping[str, str] = {
    "n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0",
}  # fmt: skip
CODES: Mapping[str, re.Pattern[str]] = {
    "x": re.compile(r"([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\}"),
    "u": re.compile(r"([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]{1,6})\}"),
    "U": re.compile(r"([0-9A-Fa-f]{8})|\{([0-9A-Fa-f]{1,6})\}"),
}
CLASSES = frozenset("dDsSwW")
ANCHORS = frozenset("AzZ")
UNENFORCEABLE_ESCAPES = frozenset("bBpPX123456789kGRK")
FLAGS = frozenset("imsuU")
MOST_RANGES = 200_000
"""Of the classes in one definition, all together."""

MOST_DIGITS = 6
_BOUNDS: Mapping[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_QUANTIFIER = re.compile(r"[*+?]|\{(?:\d+,?|\d*,\d+)\}", re.ASCII)
_OPEN = re.compile(
    r"\?(?:P?<(?![=!])\w+>|(?P<set>[a-zA-Z]*)(?:-(?P<unset>[a-zA-Z]+))?(?P<end>[:)]))"
)
_NOT_LINE_END = characters.complement(characters.one("\n"))


class Allowance:
    r"""What the classes of one definition may cost: `\w` has hundreds of ranges."""

    def __init__(self) -> None:
        self._left = MOST_RANGES

    def spend(self, chars: n.Characters, *, is_any_case: bool) -> None:
        width = sum(last - first + 1 for first, last in chars.ranges)
        letters = min(width, characters.LETTERS) if is_any_case else 0
        self._left -= len(chars.ranges) + letters
        if self._left < 0:
            raise UnsupportedGrammar("so many large classes")


def read_expression(
    pattern: str, allowance: Allowance, *, flags: str = "", offset: int = 0
) -> n.Node:
    """Return what matches; `offset` is where the pattern stands in the text that errors count in.

    Raises: InvalidGrammar, UnsupportedGrammar.
    """
    return _Reader(pattern, allowance, offset).whole(_checked(frozenset(flags), offset))


def _checked(flags: frozenset[str], at: int) -> frozenset[str]:
    if unknown := flags - FLAGS - {"l", "x", "a", "L"}:
        raise InvalidGrammar(f"unknown flags {''.join(sorted(unknown))!r}", at)
    if beyond := flags - FLAGS:
        raise UnsupportedGrammar(f"the flags {''.join(sorted(beyond))!r}")
    return flags


class _Reader:
    def __init__(self, pattern: str, allowance: Allowance, offset: int) -> None:
        self._pattern = pattern
        self._allowance = allowance
        self._offset = offset
        self._at = 0

    def whole(self, flags: frozenset[str]) -> n.Node:
        node = self._options(flags, depth=0)
        if self._at < len(self._pattern):
            raise self._unreadable("a ')' that nothing opens")
        return node

    def _options(self, flags: frozenset[str], depth: int) -> n.Node:
        """Read alternatives up to a `)` or the end."""
        if depth > MOST_DEPTH:
            raise self._unreadable(f"more than {MOST_DEPTH} groups inside each other")
        options: list[n.Node] = []
        parts: list[n.Node] = []
        is_over = False  # after an anchor at the end
        while self._at < len(self._pattern) and self._peek() != ")":
            char = self._next()
            anchor = self._anchor(char)
            if char == "|":
                options.append(n.chain(parts))
                parts, is_over = [], False
            elif anchor:
                # Whole texts begin and end here; anywhere else it would look around.
                if depth or (anchor == "^" and parts):
                    raise UnsupportedGrammar("an anchor inside the expression")
                is_over = is_over or anchor == "$"
            elif is_over:
                raise UnsupportedGrammar("more of the expression after an anchor at its end")
            else:
                node, flags = self._group(flags, depth) if char == "(" else self._one(char, flags)
                node = self._quantified(node)
                parts += [node] if node != n.EMPTY else []
        return n.any_of([*options, n.chain(parts)])

    def _anchor(self, char: str) -> str:
        """Return which anchor this is, `^` or `$`, if it is one."""
        if char == "\\" and self._peek() in ANCHORS:
            return "^" if self._next() == "A" else "$"
        return char if char in "^$" else ""

    def _one(self, char: str, flags: frozenset[str]) -> tuple[n.Node, frozenset[str]]:
        if char in "*+?":
            raise self._unreadable(f"nothing to repeat before {char!r}", back=1)
        if char == ".":
            return characters.ALL if "s" in flags else _NOT_LINE_END, flags
        if char == "[":
            return self._class(flags), flags
        chars = self._escape() if char == "\\" else characters.one(char)
        return self._in_case(chars, flags), flags

    def _in_case(self, chars: n.Characters, flags: frozenset[str]) -> n.Characters:
        is_any_case = "i" in flags
        self._allowance.spend(chars, is_any_case=is_any_case)
        return characters.without_case(chars) if is_any_case else chars

    def _group(self, flags: frozenset[str], depth: int) -> tuple[n.Node, frozenset[str]]:
        """Read what `(` opens; return it and the flags that hold after it."""
        began = self._at - 1
        inner = flags
        if self._peek() == "?":
            opening = _OPEN.match(self._pattern, self._at)
            if opening is None:
                if self._pattern[self._at + 1 : self._at + 2] in tuple("=!<>P(#"):
                    raise UnsupportedGrammar("a group that is not regular")
                raise self._unreadable("an unknown kind of group")
            self._at = opening.end()
            set_flags = _checked(frozenset(opening["set"] or ""), self._offset + began)
            unset = _checked(frozenset(opening["unset"] or ""), self._offset + began)
            inner = (flags | set_flags) - unset
            if opening["end"] == ")":
                return n.EMPTY, inner
        node = self._options(inner, depth + 1)
        if self._at >= len(self._pattern):
            raise InvalidGrammar("a '(' that nothing closes", self._offset + began)
        self._at += 1
        return node, flags

    def _quantified(self, node: n.Node) -> n.Node:
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return node
        self._at = found.end()
        if self._peek() == "?":
            self._at += 1
        elif self._peek() in ("*", "+"):
            raise UnsupportedGrammar("a repetition of a repetition")
        return repeated(node, found[0], self._offset + found.start())

    def _escape(self) -> n.Characters:
        letter = self._next("an escape that is not finished")
        if letter in CLASSES:
            return characters.named(letter)
        if letter in UNENFORCEABLE_ESCAPES:
            raise UnsupportedGrammar(rf"the escape \{letter}")
        if letter in CODES:
            code = CODES[letter].match(self._pattern, self._at)
            char = characters.numbered(code[1] or code[2]) if code else None
            if code is None or char is None:
                raise self._unreadable(rf"\{letter} without the number of a character")
            self._at = code.end()
            return characters.one(char)
        if letter in ESCAPED:
            return characters.one(ESCAPED[letter])
        if letter.isalnum():
            raise self._unreadable(rf"the unknown escape \{letter}", back=1)
        return characters.one(letter)

    def _class(self, flags: frozenset[str]) -> n.Characters:
        """Read what `[` opens. Case is dropped before the complement: `(?i)[^a]` is no `A`."""
        began = self._at - 1
        is_negated = self._peek() == "^"
        self._at += is_negated
        members: list[n.Characters] = []
        while self._peek() != "]" or not members:
            if self._at >= len(self._pattern):
                raise InvalidGrammar("a '[' that nothing closes", self._offset + began)
            members.append(self._in_case(self._member(), flags))
        self._at += 1
        chars = characters.union(members)
        return characters.complement(chars) if is_negated else chars

    def _member(self) -> n.Characters:
        first = self._single()
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return first
        self._at += 1
        if self._peek() == "-":
            raise UnsupportedGrammar("a difference of classes")
        last = self._single()
        (low, low_end), (high, high_end) = first.ranges[0], last.ranges[-1]
        if low != low_end or high != high_end or len(first.ranges) + len(last.ranges) > 2:
            raise self._unreadable("a range that does not go from one character to another")
        if low > high:
            raise self._unreadable("a range that goes backwards")
        return n.Characters(((low, high),))

    def _single(self) -> n.Characters:
        char = self._next("a '[' that nothing closes")
        if char == "[" or (char in "&~" and self._peek() == char):
            raise UnsupportedGrammar("a class inside a class; write '\\[' for the character")
        return self._escape() if char == "\\" else characters.one(char)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self, otherwise: str = "") -> str:
        if self._at >= len(self._pattern):
            raise self._unreadable(otherwise)
        self._at += 1
        return self._pattern[self._at - 1]

    def _unreadable(self, why: str, *, back: int = 0) -> InvalidGrammar:
        return InvalidGrammar(why, self._offset + self._at - back)


def repeated(node: n.Node, quantifier: str, at: int) -> n.Node:
    """Return the node as often as a quantifier says: `?`, `*`, `+`, `{n}`, `{n,}`, `{n,m}`, `{,m}`.

    Raises: InvalidGrammar, at `at`.
    """
    if quantifier in _BOUNDS:
        return n.repeat(node, *_BOUNDS[quantifier])
    low, comma, high = quantifier[1:-1].partition(",")
    if len(low) > MOST_DIGITS or len(high) > MOST_DIGITS or not low + high:
        raise InvalidGrammar("a repetition without good bounds", at)
    least = int(low or 0)
    most = int(high) if high else None if comma else least
    if most is not None and most < least:
        raise InvalidGrammar("a repetition with its bounds the wrong way round", at)
    return n.repeat(node, least, most)
