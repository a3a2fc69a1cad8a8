"""Constraints of turns, checked by a small matcher of structural tags;
test_constraint_in_xgrammar.py uses the real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from antiphon.adapters.formats.harmony import HarmonyFormat
from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.application.ports import Turn
from antiphon.domain.errors import RequestError

from .conftest import NO_PROMPT, a_turn
from .constraint_cases import ARGUMENTS, CASES, CITY, FINAL, GRAMMAR_CASES, a_choice, a_tool

Unit = int | str
"""A special token, or one character."""


def units(encoding: Encoding, markup: str) -> list[Unit]:
    found: list[Unit] = []
    for token in encoding.encode_markup(markup):
        found += [token] if token >= h.FIRST_SPECIAL else encoding.text([token])
    return found


def ends(grammar: Any, text: list[Unit], start: int) -> Iterator[int]:
    """Yield every position where a match of the grammar that starts at `start` may end."""
    match grammar:
        case {"type": "token", "token": token}:
            if text[start : start + 1] == [token]:
                yield start + 1
        case {"type": "const_string", "value": value}:
            if text[start : start + len(value)] == list(value):
                yield start + len(value)
        case {"type": "any_tokens", "exclude_tokens": excluded}:
            yield start
            while start < len(text) and text[start] not in excluded:
                start += 1
                yield start
        case {"type": "sequence", "elements": []}:
            yield start
        case {"type": "sequence", "elements": [first, *rest]}:
            for middle in ends(first, text, start):
                yield from ends({"type": "sequence", "elements": rest}, text, middle)
        case {"type": "or", "elements": elements}:
            for element in elements:
                yield from ends(element, text, start)
        case {"type": "star", "content": content}:
            yield start
            for middle in ends(content, text, start):
                yield from ends(grammar, text, middle)
        case {"type": "regex", "pattern": pattern}:
            yield from (
                end
                for end in spans(text, start)
                if re.fullmatch(pattern, text_between(text, start, end))
            )
        case {"type": "json_schema", "json_schema": schema}:
            yield from (
                end
                for end in spans(text, start)
                if is_valid(text_between(text, start, end), schema)
            )
        case _:
            raise AssertionError(f"a grammar that xgrammar does not know: {grammar}")


def spans(text: list[Unit], start: int) -> Iterator[int]:
    while start < len(text) and isinstance(text[start], str):
        start += 1
        yield start


def text_between(text: list[Unit], start: int, end: int) -> str:
    return "".join(str(unit) for unit in text[start:end])


def is_valid(instance: str, schema: Any) -> bool:
    try:
        jsonschema.validate(json.loads(instance), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def allows(encoding: Encoding, turn: Turn, markup: str, harmony: HarmonyFormat) -> bool:
    constraint = harmony.constraint(turn, NO_PROMPT)
    assert constraint is not None
    assert constraint.kind == "structural_tag"
    text = units(encoding, markup)
    return len(text) in ends(constraint.value["format"], text, 0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_constraint_allows_and_refuses_these_outputs(
    harmony: HarmonyFormat, encoding: Encoding, case: Any
) -> None:
    turn = a_turn(**case["turn"])
    for markup in case["allowed"]:
        assert allows(encoding, turn, markup, harmony), markup
    for markup in case["refused"]:
        assert not allows(encoding, turn, markup, harmony), markup


FREE = {
    "nothing asked for": {},
    "no tools": {"tools": ()},
    "high effort": {"effort": "high"},
    "a choice of none": {"choice": a_choice("none")},
    "a grammar that no structural tag can hold": {
        "tools": (a_tool("patch", kind="custom", grammar=("regex", "(?=x)x")),)
    },
}


@pytest.mark.parametrize("fields", FREE.values(), ids=FREE)
def test_a_turn_without_requirements_has_no_constraint(
    harmony: HarmonyFormat, fields: dict[str, object]
) -> None:
    assert harmony.constraint(a_turn(**fields), NO_PROMPT) is None


def test_a_call_cannot_be_required_without_tools(harmony: HarmonyFormat) -> None:
    with pytest.raises(RequestError) as error:
        harmony.constraint(a_turn(tools=(), choice=a_choice("required")), NO_PROMPT)
    assert error.value.param == "tool_choice"


def test_every_tag_names_the_tokens_in_the_same_order(harmony: HarmonyFormat) -> None:
    def order(grammar: Any) -> list[int]:
        found: dict[int, None] = {}
        for token in re.findall(r'"token": (\d+)', json.dumps(grammar)):
            found[int(token)] = None
        return list(found)

    cases = [*CASES.values(), *GRAMMAR_CASES.values()]
    constraints = [harmony.constraint(a_turn(**case["turn"]), NO_PROMPT) for case in cases]
    orders = {tuple(order(each.value)) for each in constraints if each is not None}
    assert orders == {(h.CHANNEL, h.CONSTRAIN, h.MESSAGE, h.END, h.START)}


def test_the_matcher_of_these_tests_rejects_wrong_text(encoding: Encoding) -> None:
    grammar = {"type": "json_schema", "json_schema": CITY}
    text = units(encoding, ARGUMENTS)
    assert len(text) in ends(grammar, text, 0)
    text = units(encoding, FINAL)
    assert len(text) not in ends(grammar, text, 0)
