"""Tools and tool_choice: what a model is offered, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.domain.decoding import decode_tool
from antiphon.domain.errors import RequestError
from antiphon.domain.offers import Offer, is_strict, offer
from antiphon.domain.tools import Choice

WEATHER = {"type": "function", "name": "get_weather"}
TIME = {"type": "function", "name": "get_time"}
CLOSED = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def offered(*tools: dict[str, Any], choice: Any = None) -> Offer:
    read = [decode_tool(json.dumps(tool).encode(), f"tools[{n}]") for n, tool in enumerate(tools)]
    return offer(read, choice)


def refused(*tools: dict[str, Any], choice: Any = None) -> str | None:
    with pytest.raises(RequestError) as caught:
        offered(*tools, choice=choice)
    return caught.value.param


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, Choice()),
        ("auto", Choice()),
        ("none", Choice(mode="none")),
        ("required", Choice(mode="required")),
        (
            {"type": "function", "name": "get_time"},
            Choice(mode="required", names=frozenset({"get_time"})),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [TIME]},
            Choice(mode="auto", names=frozenset({"get_time"})),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [TIME, WEATHER]},
            Choice(mode="required", names=frozenset({"get_time", "get_weather"})),
        ),
    ],
)
def test_every_form_of_tool_choice_has_one_normal_form(choice: Any, expected: Choice) -> None:
    assert offered(WEATHER, TIME, choice=choice).choice == expected


@pytest.mark.parametrize(
    "choice",
    [
        "sometimes",
        {"type": "function", "name": "nope"},
        {"type": "function"},
        {"type": "nonsense"},
        {"type": "custom", "name": "get_time"},
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "sometimes", "tools": [TIME]},
        {"type": "allowed_tools", "mode": "required", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": "get_time"},
    ],
)
def test_a_tool_choice_that_cannot_be_honoured_is_refused(choice: Any) -> None:
    assert refused(WEATHER, TIME, choice=choice) == "tool_choice"


def test_required_without_tools_is_refused() -> None:
    assert refused(choice="required") == "tool_choice"


def test_two_tools_of_one_name_are_refused() -> None:
    assert refused(WEATHER, WEATHER) == "tools"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "mcp", "server_label": "s", "server_url": "https://example.org"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "shell", "environment": {"type": "container_auto"}},
    ],
)
def test_a_tool_that_the_server_would_have_to_run_is_refused(tool: dict[str, Any]) -> None:
    assert refused(WEATHER, tool) == "tools[1].type"


def test_a_tool_that_no_model_is_told_of_is_reported_as_without_effect() -> None:
    result = offered(WEATHER, {"type": "acme:search"})
    assert result.ignored == ("tools[1]",)
    assert [spec.name for spec in result.specs] == ["get_weather"]
    assert msgspec.json.decode(result.echo[1]) == {"type": "acme:search"}


def test_a_namespace_is_flattened_for_the_model() -> None:
    crm = {"type": "namespace", "name": "crm", "description": "d", "tools": [WEATHER]}
    spec = offered(crm).specs[0]
    assert (spec.name, spec.namespace) == ("crm__get_weather", "crm")


def test_strict_is_tried_where_it_was_left_open_and_echoed() -> None:
    closed = offered({**WEATHER, "parameters": CLOSED})
    opened = offered({**WEATHER, "parameters": {**CLOSED, "required": []}})
    assert closed.specs[0].strict
    assert msgspec.json.decode(closed.echo[0])["strict"] is True
    assert msgspec.json.decode(opened.echo[0])["strict"] is False


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (CLOSED, True),
        (None, False),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({**CLOSED, "properties": {"city": {"type": "object", "properties": {}}}}, False),
    ],
)
def test_a_strict_schema_closes_every_object(schema: Any, expected: bool) -> None:
    assert is_strict(schema) is expected


def test_a_grammar_needs_a_known_syntax_and_a_definition() -> None:
    tool = {"type": "custom", "name": "sql"}
    good = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    assert offered({**tool, "format": good}).specs[0].grammar == ("lark", 'start: "x"')
    assert refused({**tool, "format": {**good, "syntax": "bnf"}}) == "tools[0].format"
    assert refused({**tool, "format": {"type": "grammar", "syntax": "regex"}}) == (
        "tools[0].format.definition"
    )


def test_a_grammar_that_nobody_can_read_is_refused_with_its_place() -> None:
    wrong = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" x'}
    sql = {"type": "custom", "name": "sql", "format": wrong}
    with pytest.raises(RequestError) as raised:
        offered({"type": "namespace", "name": "db", "description": "", "tools": [sql]})
    assert raised.value.param == "tools[0].tools[0].format.definition"
    assert raised.value.code == "invalid_value"
    assert "'x' is used but not defined, at line 1, column 12" in raised.value.message


def test_a_grammar_that_no_engine_enforces_is_told_and_without_effect() -> None:
    ahead = {"type": "grammar", "syntax": "regex", "definition": "(?=a)a"}
    tool = {"type": "custom", "name": "a", "format": ahead}
    plain = {"type": "custom", "name": "b", "format": {**ahead, "definition": "a"}}
    offer = offered(
        plain, tool, {"type": "namespace", "name": "n", "description": "", "tools": [tool]}
    )
    assert [spec.grammar for spec in offer.specs] == [
        ("regex", "a"),
        ("regex", "(?=a)a"),
        ("regex", "(?=a)a"),
    ]
    assert offer.ignored == ("tools[1].format", "tools[2].tools[0].format")


KEYS = st.sampled_from(
    ["type", "name", "tools", "mode", "properties", "required", "items", "anyOf", "$defs", "format"]
)
WORDS = st.sampled_from(["function", "custom", "object", "allowed_tools", "get_time", "mcp"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(KEYS, ANYTHING, max_size=4), st.dictionaries(KEYS, ANYTHING, max_size=4))
def test_whatever_a_client_calls_a_schema_or_a_choice_has_an_answer(
    parameters: dict[str, Any], choice: dict[str, Any]
) -> None:
    for tool in ({**WEATHER, "parameters": parameters}, {**TIME, "type": "custom", **choice}):
        try:
            offered(tool, choice=choice)
        except RequestError as error:
            assert error.message
