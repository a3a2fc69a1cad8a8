"""The shape of a body is measured without reading it as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.errors import RequestError
from antiphon.entrypoints.http.wire.bodies import BodyLimits, check_complexity

TEXT = st.text(alphabet='ab"\\[]{},\n', max_size=6)
JSON: st.SearchStrategy[Any] = st.recursive(
    TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(each) for each in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(each) for each in value), default=0)
    return 0


@given(JSON, st.integers(1, 6))
def test_a_body_is_refused_exactly_when_it_nests_too_deeply(value: Any, limit: int) -> None:
    body = json.dumps(value).encode()
    limits = BodyLimits(max_depth=limit, max_nodes=10_000)
    if depth(value) <= limit:
        check_complexity(body, limits)
    else:
        with pytest.raises(RequestError, match="nested"):
            check_complexity(body, limits)


def test_values_are_counted_outside_of_strings() -> None:
    limits = BodyLimits(max_nodes=10)
    check_complexity(json.dumps(["a,b,c,d" * 10]).encode(), limits)
    with pytest.raises(RequestError, match="more than 10 values"):
        check_complexity(json.dumps(list(range(20))).encode(), limits)
