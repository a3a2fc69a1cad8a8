"""Sets of characters as ranges of code points, with the classes that expressions name.

Surrogates are no characters: no text in UTF-8 has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from antiphon.domain.grammars.nodes import Characters, Range

HIGHEST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
LAST_WITH_CASE = 0x1E943
LETTERS = 3_000
"""About as many characters have another case."""


def of(*ranges: Range) -> Characters:
    """Return the characters of any ranges.

    >>> of((99, 100), (97, 98), (105, 105)).ranges
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


def numbered(digits: str) -> str | None:
    """Return the character of a hexadecimal number, if there is one."""
    code = int(digits, 16)
    is_known = code <= HIGHEST and not SURROGATES[0] <= code <= SURROGATES[1]
    return chr(code) if is_known else None


def union(sets: Iterable[Characters]) -> Characters:
    return of(*(each for chars in sets for each in chars.ranges))


def complement(chars: Characters) -> Characters:
    """Return all other characters.

    >>> complement(union([of((0, 0x60)), of((0x7B, HIGHEST))])).ranges
    ((97, 122),)
    """
    found: list[Range] = []
    after = 0
    for first, last in of(*chars.ranges, SURROGATES).ranges:
        if after < first:
            found.append((after, first - 1))
        after = last + 1
    if after <= HIGHEST:
        found.append((after, HIGHEST))
    return Characters(tuple(found))


def common(left: Characters, right: Characters) -> Characters:
    """Return the characters that are in both."""
    return complement(union([complement(left), complement(right)]))


ALL = complement(Characters(()))


def without_case(chars: Characters) -> Characters:
    """Add the other cases of the letters among these characters."""
    others = _other_cases()
    added = [
        other
        for first, last in chars.ranges
        for char in (range(first, last + 1) if last - first < len(others) else others)
        if first <= char <= last
        for other in others.get(char, ())
    ]
    return of(*chars.ranges, *((char, char) for char in added))


@cache
def _other_cases() -> Mapping[int, tuple[int, ...]]:
    found: dict[int, set[int]] = {}
    for code in range(LAST_WITH_CASE + 1):
        char = chr(code)
        for other in {char.lower(), char.upper()} - {char}:
            if len(other) == 1:
                found.setdefault(code, set()).add(ord(other))
                found.setdefault(ord(other), set()).add(code)
    return {code: tuple(others) for code, others in found.items()}


@cache
def named(letter: str) -> Characters:
    r"""Return the class of `\d`, `\s`, `\w` or, in upper case, its complement: of all Unicode.

    >>> named("d").ranges[0], named("S").ranges[0]
    ((48, 57), (0, 8))
    """
    if letter.isupper():
        return complement(named(letter.lower()))
    found: list[Range] = []
    for first, last in ALL.ranges:
        text = "".join(map(chr, range(first, last + 1)))
        spans = (match.span() for match in re.finditer(rf"\{letter}+", text))
        found += [(first + start, first + end - 1) for start, end in spans]
    return of(*found)
