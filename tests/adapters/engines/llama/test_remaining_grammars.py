"""A grammar goes on after what another server wrote: it then allows what the whole one did."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.engines.llama.grammar import (
    DoesNotMatch,
    TooComplex,
    gbnf_of,
    remaining_of,
)
from antiphon.adapters.engines.llama.grammar.remaining import Reader, Token
from antiphon.application.ports import Constraint

END = 7
"""A special token: its text is "<end>"."""

NODE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 5},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CALL = {
    "type": "tag",
    "begin": "<call>",
    "content": {
        "type": "json_schema",
        "json_schema": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
    "end": "</call>",
}
THEN_CALLS = {"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL]}
THOUGHT = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"}


def tag(*elements: Mapping[str, Any]) -> Constraint:
    return Constraint(
        kind="structural_tag", value={"format": {"type": "sequence", "elements": elements}}
    )


CASES: Mapping[str, tuple[Constraint, Sequence[str]]] = {
    "a recursive schema": (
        Constraint(kind="json_schema", value=NODE),
        [
            '{"name": "a", "children": []}',
            '{"name":"é\\n","children":[{"name":"","children":[]},{"name":"b","children":[]}]}',
        ],
    ),
    "an expression": (
        Constraint(kind="regex", value=r"(ab|a[^x-z]{2,3})+c?"),
        ["ab", "abab", "a12", "a123ab", "aüüc"],
    ),
    "a choice": (Constraint(kind="choice", value=["yes", "yes, but", 'a "no"']), ["yes", 'a "no"']),
    "reasoning, then calls in text": (
        tag(THOUGHT, THEN_CALLS),
        ['Hm < 3</think>Well <call>{"n": 12}</call> <call>{"n":-1}</call>.', "</think>"],
    ),
    "a token": (
        tag({"type": "const_string", "value": "a"}, {"type": "token", "token": END}),
        ["a<end>"],
    ),
}
TEXTS = [(name, text) for name, (_, texts) in CASES.items() for text in texts]


def tokens_of(text: str, size: int = 2) -> Sequence[Token]:
    head, *rest = text.split("<end>")
    pieces = [head[at : at + size] for at in range(0, len(head), size)]
    return [*enumerate(pieces, 100), *((END, "<end>") for _ in rest)]


def allows(grammar: str, tokens: Sequence[Token]) -> bool:
    reader = Reader(grammar)
    try:
        reader.read(tokens)
    except DoesNotMatch:
        return False
    return reader.may_end


def grammar_of(name: str) -> str:
    return gbnf_of(CASES[name][0], lambda token: "<end>" if token == END else None)


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_after_each_token_the_rest_is_allowed_and_no_other_text(name: str, text: str) -> None:
    grammar, tokens = grammar_of(name), tokens_of(text)
    assert allows(grammar, tokens)
    for at in range(len(tokens) + 1):
        rest = remaining_of(grammar, tokens[:at])
        assert allows(rest, tokens[at:])
        longer = (1, "x" * 40)
        assert allows(rest, [*tokens[at:], longer]) == allows(grammar, [*tokens, longer])


@given(st.sampled_from(TEXTS), st.integers(0, 60), st.integers(0, 60), st.sampled_from('a"{}<c, 1'))
def test_the_rest_allows_what_the_whole_grammar_allows(
    case: tuple[str, str], cut: int, place: int, char: str
) -> None:
    name, text = case
    place = min(place, len(text.removesuffix("<end>")))
    damaged = tokens_of(text[:place] + char + text[place + 1 :], size=1)
    grammar, written = grammar_of(name), damaged[:cut]
    try:
        rest = remaining_of(grammar, written)
    except DoesNotMatch:
        assert not allows(grammar, damaged)
    else:
        assert allows(rest, damaged[cut:]) == allows(grammar, damaged)


def test_what_remains_can_itself_be_begun() -> None:
    grammar, tokens = grammar_of("a recursive schema"), tokens_of(CASES["a recursive schema"][1][1])
    for token in tokens:
        grammar = remaining_of(grammar, [token])
    assert allows(grammar, [])


def test_a_long_text_grows_the_grammar_no_further_than_its_depth() -> None:
    schema = {"type": "array", "items": {"type": "string"}}
    grammar = gbnf_of(Constraint(kind="json_schema", value=schema), lambda _: None)
    text = json.dumps(["word " * 10] * 400)
    rest = remaining_of(grammar, tokens_of(text[:-30]))
    assert len(rest) < len(grammar) + 1000
    assert allows(rest, tokens_of(text[-30:]))


NESTED = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Constraint(kind="regex", value=r"(a{0,100}){0,100}"), "a" * 1000),
        (Constraint(kind="regex", value=r"((a|b|ab|ba){0,20}){0,40}"), "ab" * 1000),
        (Constraint(kind="json_schema", value=NESTED), "[" * 10_000),
    ],
    ids=["bounds in bounds", "many ways", "very deep"],
)
def test_a_hostile_constraint_costs_little_and_has_a_defined_end(
    constraint: Constraint, text: str
) -> None:
    grammar = gbnf_of(constraint, lambda _: None)
    started_at = time.process_time()
    with pytest.raises(TooComplex):
        remaining_of(grammar, tokens_of(text))
    assert time.process_time() - started_at < 10  # without a bound, minutes
