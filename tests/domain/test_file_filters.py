"""Filters of file search: what they match, and which are invalid."""

from __future__ import annotations

import time
from typing import Any

import pytest

from antiphon.domain.errors import RequestError
from antiphon.domain.retrieval.file_filters import (
    MAX_COMPARISONS,
    MAX_DEPTH,
    MAX_VALUES,
    parse_filter,
)

FILE = {"year": 2026, "kind": "report", "is_new": True, "size": 1.5}


def comparison(kind: str, key: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "key": key, "value": value}


def compound(kind: str, *filters: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "filters": list(filters)}


TRUE, FALSE = comparison("eq", "year", 2026), comparison("eq", "year", 1)

MATCHES = [
    (TRUE, True),
    (FALSE, False),
    (comparison("eq", "year", 2026.0), True),
    (comparison("eq", "year", "2026"), False),
    (comparison("eq", "is_new", True), True),
    (comparison("eq", "is_new", 1), False),
    (comparison("ne", "kind", "report"), False),
    (comparison("ne", "kind", "note"), True),
    (comparison("ne", "nowhere", "x"), True),
    (comparison("eq", "nowhere", "x"), False),
    (comparison("gt", "year", 2025), True),
    (comparison("gt", "year", 2026), False),
    (comparison("gte", "year", 2026), True),
    (comparison("lt", "size", 2), True),
    (comparison("lte", "kind", "s"), True),
    (comparison("lt", "kind", 5), False),
    (comparison("in", "kind", ["note", "report"]), True),
    (comparison("in", "kind", []), False),
    (comparison("in", "year", ["2026", 2026.0]), True),
    (comparison("in", "is_new", [1]), False),
    (comparison("nin", "kind", ["note"]), True),
    (comparison("nin", "nowhere", ["note"]), True),
    (compound("and", TRUE, TRUE), True),
    (compound("and", TRUE, FALSE), False),
    (compound("or", FALSE, TRUE), True),
    (compound("or", FALSE, FALSE), False),
    (compound("or", compound("and", TRUE, FALSE), TRUE), True),
]


@pytest.mark.parametrize(("value", "matches"), MATCHES)
def test_a_filter_matches_by_the_attributes(value: Any, matches: bool) -> None:
    parsed = parse_filter(value, "filters")
    assert parsed is not None
    assert parsed.matches(FILE) is matches


def test_null_means_no_filter() -> None:
    assert parse_filter(None, "filters") is None


def nested(levels: int) -> dict[str, Any]:
    return TRUE if levels == 1 else compound("and", nested(levels - 1))


INVALID_FILTERS = [
    ([], "f"),
    ("x", "f"),
    ({}, "f.type"),
    ({"type": "like", "key": "a", "value": "b"}, "f.type"),
    ({"type": []}, "f.type"),
    ({"type": "eq", "value": 1}, "f.key"),
    ({"type": "eq", "key": 5, "value": 1}, "f.key"),
    ({"type": "eq", "key": "a"}, "f.value"),
    (comparison("eq", "a", {"b": 1}), "f.value"),
    (comparison("eq", "a", ["b"]), "f.value"),
    (comparison("eq", "a", "x" * 1000), "f.value"),
    (comparison("in", "a", "b"), "f.value"),
    (comparison("in", "a", ["b", {}]), "f.value[1]"),
    ({"type": "and"}, "f.filters"),
    ({"type": "and", "filters": []}, "f.filters"),
    (compound("or", TRUE, compound("and", TRUE, {"type": "no"})), "f.filters[1].filters[1].type"),
    (compound("and", *[TRUE] * (MAX_COMPARISONS + 1)), f"f.filters[{MAX_COMPARISONS}]"),
    (nested(MAX_DEPTH + 1), "f" + ".filters[0]" * (MAX_DEPTH - 1) + ".filters"),
]


@pytest.mark.parametrize(("value", "param"), INVALID_FILTERS)
def test_the_error_of_an_invalid_filter_names_the_invalid_part(value: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_filter(value, "f")
    assert caught.value.param == param


def test_a_filter_may_be_as_deep_and_long_as_the_limits() -> None:
    assert parse_filter(nested(MAX_DEPTH), "f") is not None
    assert parse_filter(compound("and", *[TRUE] * MAX_COMPARISONS), "f") is not None


def test_a_long_list_is_not_scanned_for_each_file() -> None:
    long_list = comparison("nin", "kind", [f"note {n}" for n in range(MAX_VALUES)])
    parsed = parse_filter(compound("and", *[long_list] * MAX_COMPARISONS), "f")
    assert parsed is not None
    started = time.process_time()
    assert all(parsed.matches(FILE) for _ in range(500))
    assert time.process_time() - started < 3
