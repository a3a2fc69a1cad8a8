"""Filters of file search: which files are searched, by their attributes
(docs/reference/api.md#filters)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from antiphon.domain.errors import RequestError, missing_parameter

Value = str | float | bool
Attributes = Mapping[str, Any]

DEEPEST = 8
MOST = 100
MOST_VALUES = 1000
LONGEST = 512
"""Bounds of one request's filter: levels, comparisons, values of an `in`, characters of each."""


class Comparison(Struct, frozen=True, kw_only=True):
    """A file that lacks the key fits only `ne` and `nin`; `value` of a list is a set of `_known`,
    so that it is looked up and not gone through, for each of ten thousand files."""

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
        every = (each.matches(attributes) for each in self.filters)
        return all(every) if self.type == "and" else any(every)


Filter = Comparison | Compound


def _is_kind(value: Any, other: Any) -> bool:
    """Whether two values can be equal, or one less: 1 and true cannot, 1 and 1.0 can."""
    return _kind(value) == _kind(other)


def _kind(value: Any) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _known(value: Any) -> tuple[type, Any]:
    """Return what is equal for equal values, and can be in a set."""
    return _kind(value), value


def _equal(value: Any, other: Any) -> bool:
    return _is_kind(value, other) and bool(value == other)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, other: _is_kind(value, other) and compare(value, other)


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": _equal,
    "ne": lambda value, other: not _equal(value, other),
    "gt": _ordered(operator.gt),
    "gte": _ordered(operator.ge),
    "lt": _ordered(operator.lt),
    "lte": _ordered(operator.le),
    "in": lambda value, others: _known(value) in others,
    "nin": lambda value, others: _known(value) not in others,
}
NEGATIONS = ("ne", "nin")
LISTS = ("in", "nin")
COMPOUNDS = ("and", "or")


def parse_filter(value: Any, path: str) -> Filter | None:
    """Return the filter that `value`, decoded JSON at `path`, is; None for null.

    Raises: RequestError that names the part at fault.
    """
    return None if value is None else _Reader().read(value, path, DEEPEST)


class _Reader:
    """Reads one filter; counts its comparisons."""

    def __init__(self) -> None:
        self._left = MOST

    def read(self, value: Any, path: str, levels: int) -> Filter:
        if not isinstance(value, dict):
            raise _invalid(path, "A filter is an object")
        kind = value.get("type")
        if kind is None:
            raise missing_parameter(f"{path}.type")
        if kind in COMPOUNDS:
            return self._compound(kind, value, path, levels)
        if not isinstance(kind, str) or kind not in _COMPARISONS:
            known = ", ".join([*_COMPARISONS, *COMPOUNDS])
            raise _invalid(f"{path}.type", f"The type of a filter is one of {known}")
        return self._comparison(kind, value, path)

    def _compound(self, kind: str, value: dict[str, Any], path: str, levels: int) -> Compound:
        inner = value.get("filters")
        if inner is None:
            raise missing_parameter(f"{path}.filters")
        if not isinstance(inner, list) or not inner:
            raise _invalid(f"{path}.filters", "Give a list with one filter at least")
        if levels < 2:
            raise _invalid(f"{path}.filters", f"Filters may be nested {DEEPEST} levels deep")
        return Compound(
            type=kind,
            filters=tuple(
                self.read(each, f"{path}.filters[{position}]", levels - 1)
                for position, each in enumerate(inner)
            ),
        )

    def _comparison(self, kind: str, value: dict[str, Any], path: str) -> Comparison:
        self._left -= 1
        if self._left < 0:
            raise _invalid(path, f"A filter may have {MOST} comparisons")
        for name in ("key", "value"):
            if value.get(name) is None:
                raise missing_parameter(f"{path}.{name}")
        key, given = value["key"], value["value"]
        if not isinstance(key, str) or not 1 <= len(key) <= LONGEST:
            raise _invalid(f"{path}.key", "A key is a string")
        if kind in LISTS:
            if not isinstance(given, list) or len(given) > MOST_VALUES:
                raise _invalid(f"{path}.value", f"Give a list of up to {MOST_VALUES} values")
            for position, each in enumerate(given):
                _check_value(each, f"{path}.value[{position}]")
            given = frozenset(map(_known, given))
        else:
            _check_value(given, f"{path}.value")
        return Comparison(type=kind, key=key, value=given)


def _check_value(value: Any, path: str) -> None:
    if not isinstance(value, str | bool | int | float):
        raise _invalid(path, "A value is a string, a number or a boolean")
    if isinstance(value, str) and len(value) > LONGEST:
        raise _invalid(path, f"A value may have {LONGEST} characters")


def _invalid(path: str, why: str) -> RequestError:
    return RequestError(f"Invalid {path!r}: {why}.", param=path, code="invalid_value")
