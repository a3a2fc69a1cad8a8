"""Grammars allow the numbers within bounds, and no others."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.engines.llama.grammar import gbnf_of
from antiphon.adapters.engines.llama.grammar.numbers import decimals, integers, multiples
from antiphon.adapters.engines.llama.grammar.schemas import CannotExpress
from antiphon.application.ports import Constraint

BOUNDS = st.none() | st.integers(-1200, 1200)


def matches(expression: str | None, text: str) -> bool:
    if expression is None:
        return False
    literal = re.sub(r'"([^"]*)"', lambda each: re.escape(each[1]), expression)
    return re.fullmatch(literal.replace(" ", ""), text) is not None


@given(BOUNDS, BOUNDS, st.integers(-1300, 1300))
def test_exactly_the_integers_within_bounds_match(
    low: int | None, high: int | None, number: int
) -> None:
    is_within = (low is None or number >= low) and (high is None or number <= high)
    assert matches(integers(low, high), str(number)) == is_within


@given(
    st.none() | st.floats(-30, 30),
    st.none() | st.floats(-30, 30),
    st.decimals(-35, 35, places=3),
)
def test_no_number_outside_of_the_bounds_matches(
    low: float | None, high: float | None, number: object
) -> None:
    value = float(str(number))
    if matches(decimals(low, high), f"{value:.3f}"):
        assert low is None or value >= low
        assert high is None or value <= high


def test_multiples_are_enumerated() -> None:
    assert multiples(5, 0, 20) == '("0" | "5" | "10" | "15" | "20")'


def test_what_has_no_grammar_is_refused_with_the_reason() -> None:
    schema = {"type": "string", "pattern": r"(?=a)b"}
    with pytest.raises(CannotExpress, match="pattern"):
        gbnf_of(Constraint(kind="json_schema", value=schema), lambda _: None)


def test_reasoning_stays_free_up_to_its_end() -> None:
    reasoning = {
        "type": "tag",
        "begin": "<t>",
        "content": {"type": "any_text"},
        "end": "</t>",
    }
    answer = {"type": "const_string", "value": "yes"}
    tag = {"type": "sequence", "elements": [reasoning, answer]}
    value = {"type": "structural_tag", "format": tag}
    grammar = gbnf_of(Constraint(kind="structural_tag", value=value), lambda _: None)
    assert grammar.splitlines()[0] == 'root ::= "<t>" text-1 "yes"'
    assert len(grammar.splitlines()) == 1 + len("</t>")
