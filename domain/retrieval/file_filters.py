"""Attribute filters of a file search: which files it searches
(docs/reference/api.md#filters)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.domain.errors import RequestError, missing_parameter

Value = str | float | bool
Attributes = Mapping[str, Any]

MAX_DEPTH = 8
MAX_COMPARISONS = 100
MAX_VALUES = 1000
MAX_CHARS = 512
"""Limits of one filter: levels, comparisons, values in the list of `in` or `nin`, and characters of
a key or value."""


class Comparison(Struct, frozen=True, kw_only=True):
    """A comparison of one attribute; a file without the key matches only `ne` and `nin`.

    For `in` and `nin`, `value` is a set of `_hash_key`s: a lookup stays fast over many files.
    """

    type: str
    key: str
    value: Any

    def matches(self, attributes: Attributes) -> bool:
        if self.key not in attributes:
            return self.type in NEGATIONS
        return _COMPARISONS[self.type](attributes[self.key], self.value)


class Compound(Struct, frozen=True, kw_only=True):
    type: str
    filters: tuple[Filter, ...]

    def matches(self, attributes: Attributes) -> bool:
        results = (each.matches(attributes) for each in self.filters)
        return all(results) if self.type == "and" else any(results)


Filter = Comparison | Compound


def _is_comparable(value: Any, other: Any) -> bool:
    """Return whether two values have comparable types: 1 and 1.0 do, 1 and true do not."""
    return _type_of(value) == _type_of(other)


def _type_of(value: Any) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _hash_key(value: Any) -> tuple[type, Any]:
    """Return a hashable key that is equal for equal values."""
    return _type_of(value), value


def _is_equal(value: Any, other: Any) -> bool:
    return _is_comparable(value, other) and bool(value == other)


def _comparison_with(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, other: _is_comparable(value, other) and compare(value, other)


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": _is_equal,
    "ne": lambda value, other: not _is_equal(value, other),
    "gt": _comparison_with(operator.gt),
    "gte": _comparison_with(operator.ge),
    "lt": _comparison_with(operator.lt),
    "lte": _comparison_with(operator.le),
    "in": lambda value, others: _hash_key(value) in others,
    "nin": lambda value, others: _hash_key(value) not in others,
}
NEGATIONS = ("ne", "nin")
LISTS = ("in", "nin")
COMPOUNDS = ("and", "or")


def parse_filter(value: Any, path: str) -> Filter | None:
    """Return the filter in `value`, the decoded JSON at `path`; None for null.

    Raises: RequestError that names the invalid part.
    """
    return None if value is None else _Parser().parse(value, path, MAX_DEPTH)


class _Parser:
    """Parses one filter and counts its comparisons."""

    def __init__(self) -> None:
        self._remaining_comparisons = MAX_COMPARISONS

    def parse(self, value: Any, path: str, levels: int) -> Filter:
        if not isinstance(value, dict):
            raise _invalid(path, "A filter is an object")
        kind = value.get("type")
        if kind is None:
            raise missing_parameter(f"{path}.type")
        if kind in COMPOUNDS:
            return self._parse_compound(kind, value, path, levels)
        if not isinstance(kind, str) or kind not in _COMPARISONS:
            types = ", ".join([*_COMPARISONS, *COMPOUNDS])
            raise _invalid(f"{path}.type", f"The type of a filter is one of {types}")
        return self._parse_comparison(kind, value, path)

    def _parse_compound(self, kind: str, value: dict[str, Any], path: str, levels: int) -> Compound:
        filters = value.get("filters")
        if filters is None:
            raise missing_parameter(f"{path}.filters")
        if not isinstance(filters, list) or not filters:
            raise _invalid(f"{path}.filters", "Give a list with at least one filter")
        if levels < 2:
            raise _invalid(f"{path}.filters", f"Filters may be nested {MAX_DEPTH} levels deep")
        return Compound(
            type=kind,
            filters=tuple(
                self.parse(each, f"{path}.filters[{position}]", levels - 1)
                for position, each in enumerate(filters)
            ),
        )

    def _parse_comparison(self, kind: str, value: dict[str, Any], path: str) -> Comparison:
        self._remaining_comparisons -= 1
        if self._remaining_comparisons < 0:
            raise _invalid(path, f"A filter may have {MAX_COMPARISONS} comparisons")
        for name in ("key", "value"):
            if value.get(name) is None:
                raise missing_parameter(f"{path}.{name}")
        key, operand = value["key"], value["value"]
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_CHARS:
            raise _invalid(f"{path}.key", "A key is a string")
        if kind in LISTS:
            if not isinstance(operand, list) or len(operand) > MAX_VALUES:
                raise _invalid(f"{path}.value", f"Give a list of up to {MAX_VALUES} values")
            for position, each in enumerate(operand):
                _check_value(each, f"{path}.value[{position}]")
            operand = frozenset(map(_hash_key, operand))
        else:
            _check_value(operand, f"{path}.value")
        return Comparison(type=kind, key=key, value=operand)


def _check_value(value: Any, path: str) -> None:
    if not isinstance(value, str | bool | int | float):
        raise _invalid(path, "A value is a string, a number or a boolean")
    if isinstance(value, str) and len(value) > MAX_CHARS:
        raise _invalid(path, f"A value may have {MAX_CHARS} characters")


def _invalid(path: str, why: str) -> RequestError:
    return RequestError(f"Invalid {path!r}: {why}.", param=path, code="invalid_value")
