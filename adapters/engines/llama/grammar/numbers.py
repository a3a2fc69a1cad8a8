"""Integers and decimal numbers within bounds, as GBNF.

>>> integers(3, 12)
'([3-9] | "1" [0-2])'
>>> integers(-1, None)
'("-" "1" | ("0" | [1-9] [0-9]{0,15}))'
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, isinf

from antiphon.adapters.engines.llama.grammar.rules import MAX_REPEATS, any_of, quote

MAX_DIGITS = 15
"""More digits would not survive JSON: clients read numbers as 64-bit floats."""

FRACTION = f'"." [0-9]{{1,{MAX_DIGITS}}}'
EXPONENT = "[eE] [-+]? [0-9]{1,2}"
ANY_INTEGER = f'"-"? ("0" | [1-9] [0-9]{{0,{MAX_DIGITS}}})'
ANY_NUMBER = f"{ANY_INTEGER} ({FRACTION})? ({EXPONENT})?"


def integers(low: int | None, high: int | None) -> str | None:
    """Return the expression of the integers from `low` to `high`; None if there is none."""
    if low is None and high is None:
        return ANY_INTEGER
    if low is not None and high is not None and low > high:
        return None
    options: list[str] = []
    if low is None or low < 0:
        first = 1 if high is None or high >= 0 else -high
        options.append(f'"-" {_naturals(first, None if low is None else -low)}')
    if high is None or high >= 0:
        options.append(_naturals(max(low or 0, 0), high))
    return any_of(options)


def multiples(of: int, low: int | None, high: int | None) -> str | None:
    """Return the expression of multiples within bounds: of very many, the first thousand."""
    start = (low if low is not None else min(0, high or 0) - of * (MAX_REPEATS // 2)) + of - 1
    start -= start % of
    end = start + of * MAX_REPEATS if high is None else min(high, start + of * MAX_REPEATS)
    options = [quote(str(each)) for each in range(start, end + 1, of)]
    return any_of(options) if options else None


def decimals(low: float | None, high: float | None) -> str | None:
    """Return the expression of numbers strictly or not within bounds; None if there is none.

    Only the nearest integers to the bounds have no fraction of their own: so every text is within
    the bounds, and nearly every number has one.
    """
    low = None if low is None or isinf(low) else low
    high = None if high is None or isinf(high) else high
    if low is None and high is None:
        return ANY_NUMBER
    first = None if low is None else ceil(low)
    last = None if high is None else floor(high)
    options = [each for each in [integers(first, last)] if each is not None]
    # Above zero, an integer with a fraction is between it and the next; below, the other way.
    above = integers(max(first or 0, 0), None if last is None else last - 1)
    if (last is None or last >= 1) and above is not None:
        options.append(f"{above} {FRACTION}")
    below = integers(None if first is None else first + 1, min(-1 if last is None else last, -1))
    if (first is None or first <= -2) and below is not None:
        options.append(f"{below} {FRACTION}")
    if (first is None or first <= -1) and (last is None or last >= 0):
        options.append(f'"-" "0" {FRACTION}')
    return any_of(options) if options else _close_decimals(low, high)


def _close_decimals(low: float | None, high: float | None) -> str | None:
    """Return the decimals between two bounds that have no integer between them."""
    if low is None or high is None or low > high:
        return None
    for places in range(1, MAX_DIGITS):
        scale = 10**places
        found = range(ceil(low * scale), floor(high * scale) + 1)
        if len(found):
            texts = (f"{each / scale:.{places}f}" for each in found[: MAX_REPEATS // 2])
            return any_of([quote(text) for text in texts])
    return None


def _naturals(low: int, high: int | None) -> str:
    return any_of(list(_natural_options(low, high)))


def _natural_options(low: int, high: int | None) -> Iterator[str]:
    if high is None:
        if low <= 1:
            if low == 0:
                yield '"0"'
            yield f"[1-9] [0-9]{{0,{MAX_DIGITS}}}"
            return
        digits = len(str(low))
        yield from _same_length(str(low), "9" * digits)
        yield f"[1-9] [0-9]{{{digits},{max(MAX_DIGITS, digits)}}}"
        return
    for digits in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        last = min(high, 10**digits - 1)
        yield from _same_length(str(first), str(last))


def _same_length(low: str, high: str) -> Iterator[str]:
    """Yield expressions of the numbers between two with equally many digits."""
    if low == high:
        yield quote(low)
        return
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        yield _digits(low[0], high[0]) + _more_digits(rest)
        return
    if low[0] == high[0]:
        yield f"{quote(low[0])} {any_of(list(_same_length(low[1:], high[1:])))}"
        return
    yield f"{quote(low[0])} {any_of(list(_same_length(low[1:], '9' * rest)))}"
    if int(high[0]) - int(low[0]) > 1:
        yield _digits(str(int(low[0]) + 1), str(int(high[0]) - 1)) + _more_digits(rest)
    yield f"{quote(high[0])} {any_of(list(_same_length('0' * rest, high[1:])))}"


def _digits(low: str, high: str) -> str:
    return quote(low) if low == high else f"[{low}-{high}]"


def _more_digits(count: int) -> str:
    return f" [0-9]{{{count}}}" if count else ""
