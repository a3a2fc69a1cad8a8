"""Filters of file search: what fits, and what is no filter."""

from __future__ import annotations

import time
from typing import Any

import pytest

from antiphon.domain.errors import RequestError
from antiphon.domain.file_filters import DEEPEST, MOST, MOST_VALUES, parse_filter

FILE = {"year": 2026, "kind": "report", "is_new": True, "size": 1.5}


def compared(kind: str, key: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "key": key, "value": value}


def joined(kind: str, *filters: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "filters": list(filters)}


TRUE, FALSE = compared("eq", "year", 2026), compared("eq", "year", 1)

FITS = [
    (TRUE, True),
    (FALSE, False),
    (compared("eq", "year", 2026.0), True),
    (compared("eq", "year", "2026"), False),
    (compared("eq", "is_new", True), True),
    (compared("eq", "is_new", 1), False),
    (compared("ne", "kind", "report"), False),
    (compared("ne", "kind", "note"), True),
    (compared("ne", "nowhere", "x"), True),
    (compared("eq", "nowhere", "x"), False),
    (compared("gt", "year", 2025), True),
    (compared("gt", "year", 2026), False),
    (compared("gte", "year", 2026), True),
    (compared("lt", "size", 2), True),
    (compared("lte", "kind", "s"), True),
    (compared("lt", "kind", 5), False),
    (compared("in", "kind", ["note", "report"]), True),
    (compared("in", "kind", []), False),
    (compared("in", "year", ["2026", 2026.0]), True),
    (compared("in", "is_new", [1]), False),
    (compared("nin", "kind", ["note"]), True),
    (compared("nin", "nowhere", ["note"]), True),
    (joined("and", TRUE, TRUE), True),
    (joined("and", TRUE, FALSE), False),
    (joined("or", FALSE, TRUE), True),
    (joined("or", FALSE, FALSE), False),
    (joined("or", joined("and", TRUE, FALSE), TRUE), True),
]


@pytest.mark.parametrize(("value", "fits"), FITS)
def test_a_filter_fits_by_the_attributes(value: Any, fits: bool) -> None:
    read = parse_filter(value, "filters")
    assert read is not None
    assert read.matches(FILE) is fits


def test_null_is_no_filter() -> None:
    assert parse_filter(None, "filters") is None


def nested(levels: int) -> dict[str, Any]:
    return TRUE if levels == 1 else joined("and", nested(levels - 1))


REFUSED = [
    ([], "f"),
    ("x", "f"),
    ({}, "f.type"),
    ({"type": "like", "key": "a", "value": "b"}, "f.type"),
    ({"type": []}, "f.type"),
    ({"type": "eq", "value": 1}, "f.key"),
    ({"type": "eq", "key": 5, "value": 1}, "f.key"),
    ({"type": "eq", "key": "a"}, "f.value"),
    (compared("eq", "a", {"b": 1}), "f.value"),
    (compared("eq", "a", ["b"]), "f.value"),
    (compared("eq", "a", "x" * 1000), "f.value"),
    (compared("in", "a", "b"), "f.value"),
    (compared("in", "a", ["b", {}]), "f.value[1]"),
    ({"type": "and"}, "f.filters"),
    ({"type": "and", "filters": []}, "f.filters"),
    (joined("or", TRUE, joined("and", TRUE, {"type": "no"})), "f.filters[1].filters[1].type"),
    (joined("and", *[TRUE] * (MOST + 1)), f"f.filters[{MOST}]"),
    (nested(DEEPEST + 1), "f" + ".filters[0]" * (DEEPEST - 1) + ".filters"),
]


@pytest.mark.parametrize(("value", "param"), REFUSED)
def test_what_is_no_filter_is_named(value: Any, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_filter(value, "f")
    assert refused.value.param == param


def test_a_filter_may_be_as_deep_and_long_as_it_is_said() -> None:
    assert parse_filter(nested(DEEPEST), "f") is not None
    assert parse_filter(joined("and", *[TRUE] * MOST), "f") is not None


def test_long_lists_are_not_gone_through_for_each_file() -> None:
    listed = compared("nin", "kind", [f"note {n}" for n in range(MOST_VALUES)])
    read = parse_filter(joined("and", *[listed] * MOST), "f")
    assert read is not None
    before = time.process_time()
    assert all(read.matches(FILE) for _ in range(500))
    assert time.process_time() - before < 3
