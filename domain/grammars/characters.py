"""Sets of characters as ranges of code points, with the character classes of expressions.

Surrogates do not count as characters, since UTF-8 text cannot contain them.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from sys import byteorder

from antiphon.domain.grammars.nodes import Characters, Range

MAX_CODE_POINT = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
LAST_WITH_CASE = 0x1E943
MAX_CASE_VARIANTS = 3_000
"""About how many characters have another case."""


def from_ranges(*ranges: Range) -> Characters:
    """Return the characters of these ranges, which may overlap and be in any order.

    >>> from_ranges((99, 100), (97, 98), (105, 105)).ranges
    ((97, 100), (105, 105))
    """
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return Characters(tuple(merged))


def one(char: str) -> Characters:
    return Characters(((ord(char), ord(char)),))


def from_hex(digits: str) -> str | None:
    """Return the character with a hexadecimal code point, None if there is none."""
    code = int(digits, 16)
    is_character = code <= MAX_CODE_POINT and not SURROGATES[0] <= code <= SURROGATES[1]
    return chr(code) if is_character else None


def union(sets: Iterable[Characters]) -> Characters:
    return from_ranges(*(each for chars in sets for each in chars.ranges))


def contains(chars: Characters, char: str) -> bool:
    place = bisect_right(chars.ranges, ord(char), key=lambda each: each[0]) - 1
    return place >= 0 and ord(char) <= chars.ranges[place][1]


def complement(chars: Characters) -> Characters:
    """Return all other characters.

    >>> complement(union([from_ranges((0, 0x60)), from_ranges((0x7B, MAX_CODE_POINT))])).ranges
    ((97, 122),)
    """
    gaps: list[Range] = []
    start = 0
    for first, last in from_ranges(*chars.ranges, SURROGATES).ranges:
        if start < first:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return Characters(tuple(gaps))


def common(left: Characters, right: Characters) -> Characters:
    """Return the characters that are in both sets."""
    return complement(union([complement(left), complement(right)]))


ALL = complement(Characters(()))


@lru_cache(maxsize=64)
def without_case(chars: Characters) -> Characters:
    """Return these characters and the other cases of the letters among them."""
    variants = _case_variants()
    added = [
        other
        for first, last in chars.ranges
        for char in (range(first, last + 1) if last - first < len(variants) else variants)
        if first <= char <= last
        for other in variants.get(char, ())
    ]
    return from_ranges(*chars.ranges, *((char, char) for char in added))


@cache
def _case_variants() -> Mapping[int, tuple[int, ...]]:
    variants: dict[int, set[int]] = {}
    for code in range(LAST_WITH_CASE + 1):
        char = chr(code)
        for other in {char.lower(), char.upper()} - {char}:
            if len(other) == 1:
                variants.setdefault(code, set()).add(ord(other))
                variants.setdefault(ord(other), set()).add(code)
    return {code: tuple(others) for code, others in variants.items()}


_ASCII: Mapping[str, tuple[Range, ...]] = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
}


@cache
def character_class(letter: str, *, is_ascii: bool = False) -> Characters:
    r"""Return the Unicode class `\d`, `\s` or `\w`, or the complement for an upper-case letter.

    With `is_ascii`, only the digits, letters and `_` of ASCII count in `\d` and `\w`.

    >>> character_class("d").ranges[0], character_class("S").ranges[0]
    ((48, 57), (0, 8))
    """
    if letter.isupper():
        return complement(character_class(letter.lower(), is_ascii=is_ascii))
    if is_ascii and letter in _ASCII:
        return from_ranges(*_ASCII[letter])
    # A third of the time that a join of characters takes, while every client waits.
    codes = array("I", range(MAX_CODE_POINT + 1)).tobytes()
    text = codes.decode(f"utf-32-{byteorder[0]}e", "surrogatepass")
    spans = (match.span() for match in re.finditer(rf"\{letter}+", text))
    return from_ranges(*((start, end - 1) for start, end in spans))
