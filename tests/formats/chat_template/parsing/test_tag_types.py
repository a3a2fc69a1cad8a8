"""Of which type a value in tags is: the tool's schema says it, the same way in all families."""

# ruff: noqa: E501, RUF001 - one case a line; DeepSeek's markers contain a full-width bar

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec

Read = Callable[..., list[d.Delta]]

CALLS = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=x>\n@\n</parameter>\n</function>\n</tool_call>",
    "mimo": "<tool_call><function=f><parameter=x>@</parameter></function></tool_call>",
    "k2_horizon": "<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>x</ifm|arg_key><ifm|arg_value>@</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
    "seed_oss": "<seed:tool_call>\n<function=f>\n<parameter=x>@</parameter>\n</function>\n</seed:tool_call>",
    "glm": "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>@</arg_value>\n</tool_call>",
    "hy3": "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>x</arg_key:opensource>\n<arg_value:opensource>@</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    "step3": '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">\n<steptml:parameter name="x">@</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>',
    "minicpm5": '<function name="f"><param name="x">@</param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">@</parameter>\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<x>@]<]minimax[>[</x>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
    "dots": '<dots_function_call>\n<invoke name="f">\n<parameter name="x">@</parameter>\n</invoke>\n</dots_function_call>',
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x">@</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="x"<|sep|>@<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    "gemma4": "<|tool_call>call:f{x:@}<tool_call|>",
}  # fmt: skip

ANY_OF = {"anyOf": [{"type": "string"}, {"type": "null"}]}
ONE_OF = {"oneOf": [{"type": "null"}, {"type": "string"}]}
LISTED = {"type": ["string", "null"]}
NUMBER_OR_TEXT = {"type": ["integer", "string"]}
VALUES: dict[str, tuple[Any, str, Any]] = {
    "a number in a text": ({"type": "string"}, "8080", "8080"),
    "a truth value in a text": ({"type": "string"}, "true", "true"),
    "a number in an optional text": (ANY_OF, "8080", "8080"),
    "a truth value in an optional text": (LISTED, "true", "true"),
    "one of Python's in an optional text": (ONE_OF, "True", "True"),
    "a word that begins like null": (ANY_OF, "nullable", "nullable"),
    "null in an optional text": (ANY_OF, "null", None),
    "null in a listed optional text": (LISTED, "null", None),
    "null in an optional text, null first": (ONE_OF, "null", None),
    "null in OpenAPI's optional text": ({"type": "string", "nullable": True}, "null", None),
    "null of Python in an optional text": (ANY_OF, "None", None),
    "null in an optional number": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
    "an optional number": ({"type": ["number", "null"]}, "2.5", 2.5),
    "a reference to a text": ({"$ref": "#/$defs/Color"}, "8080", "8080"),
    "a reference to a text or null": ({"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}]}, "true", "true"),
    "a reference to a number": ({"allOf": [{"$ref": "#/$defs/Size"}]}, "3", 3),
    "a reference to nothing": ({"$ref": "#/$defs/Lost"}, "3", 3),
    "a reference to itself": ({"$ref": "#/$defs/Loop"}, "3", "3"),
    "texts to choose from": ({"enum": ["1", "2"]}, "1", "1"),
    "texts or null to choose from": ({"enum": ["1", None]}, "null", None),
    "numbers to choose from": ({"enum": [1, 2]}, "1", 1),
    "numbers and texts to choose from": ({"enum": [1, "auto"]}, "auto", "auto"),
    "a constant text": ({"const": "1"}, "1", "1"),
    "a constant number": ({"const": 1}, "1", 1),
    "a number or a text, a number": (NUMBER_OR_TEXT, "3", 3),
    "a number or a text, a text": (NUMBER_OR_TEXT, "3rd", "3rd"),
    "a number or a text, a truth value": (NUMBER_OR_TEXT, "true", "true"),
    "an integer or a text, a fraction": (NUMBER_OR_TEXT, "3.5", "3.5"),
    "no type": ({"description": "Anything."}, "3", "3"),
    "a truth value": ({"type": "boolean"}, "true", True),
    "a truth value of Python": ({"type": "boolean"}, "False", False),
    "a number": ({"type": "integer"}, "3", 3),
    "a number in quotes": ({"type": "integer"}, '"3"', 3),
    "a fraction in quotes": ({"type": ["number", "null"]}, '"2.5"', 2.5),
    "a fraction in quotes, no fraction allowed": ({"type": "integer"}, '"2.5"', "2.5"),
    "a number in quotes, a text allowed": (NUMBER_OR_TEXT, '"3"', "3"),
    "zeros before a number": ({"type": "integer"}, "-007", -7),
    "zeros before a number in a text": ({"type": "string"}, "007", "007"),
    "no number": ({"type": "integer"}, "three", "three"),
}  # fmt: skip
DEFINITIONS = {
    "Color": {"type": "string", "enum": ["8080", "true"]},
    "Size": {"type": "integer"},
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/Loop"}]},
}


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize(("schema", "text", "expected"), VALUES.values(), ids=VALUES)
def test_the_schema_says_of_which_type_a_value_is(
    read: Read, family: str, schema: Any, text: str, expected: Any
) -> None:
    parameters = {"type": "object", "properties": {"x": schema}, "$defs": DEFINITIONS}
    tools = (ToolSpec(name="f", parameters=parameters),)
    call = CALLS[family].replace("@", text)
    deltas = read(family, call, tools=tools)
    assert [type(delta) for delta in deltas] == [d.CallStart, d.ArgumentsDelta, d.ItemEnd]
    value = json.loads(deltas[1].text)["x"]  # type: ignore[attr-defined]
    assert (value, type(value)) == (expected, type(expected))
    assert read(family, call, tools=tools, cuts=range(1, len(call))) == deltas


LISTS = {"anyOf": [{"type": "string"}, {"type": "array"}]}


@pytest.mark.parametrize("family", sorted(CALLS.keys() - {"gemma4"}))
@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "None", "None"),
        (ANY_OF, "[1]", "[1]"),
        (LISTED, '{"a": 1}', '{"a": 1}'),
        (LISTS, "[1]", [1]),
        (LISTS, "8080", "8080"),
        ({"type": "array"}, "['a', None]", ["a", None]),
        ({"type": "array"}, r"[{\"a\": \"b\\\\c\"}]", [{"a": "b\\c"}]),
        ({"type": "array"}, r'"[\"a\", 1]"', ["a", 1]),
        ({"type": "object"}, r'"{\"a\": 1}"', {"a": 1}),
        ({"type": "object"}, r'"[\"a\"]"', '["a"]'),
        ({"type": "integer"}, r"\"3\"", r"\"3\""),
        (LISTS, r"[\"a\"]", r"[\"a\"]"),
        ({"type": "object"}, r"{'a': '\d+'}", {"a": r"\d+"}),
    ],
)
def test_the_schema_says_what_is_a_text_where_texts_have_no_quotes(
    read: Read, family: str, schema: Any, text: str, expected: Any
) -> None:
    tools = (ToolSpec(name="f", parameters={"type": "object", "properties": {"x": schema}}),)
    arguments = read(family, CALLS[family].replace("@", text), tools=tools)[1]
    assert json.loads(arguments.text) == {"x": expected}  # type: ignore[attr-defined]


TEXT_OR_SIZE = [
    {"properties": {"x": {"type": "string"}}},
    {"properties": {"x": {"$ref": "#/$defs/Size"}, "y": {"type": "string"}}},
]


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"oneOf": TEXT_OR_SIZE}, 3),
        ({"anyOf": TEXT_OR_SIZE[:1]}, "3"),
        ({"allOf": [{"required": ["x"]}, {"$ref": "#/$defs/Sized"}]}, 3),
        ({"$ref": "#/$defs/Self"}, "3"),
    ],
)
def test_a_schema_of_alternatives_has_the_arguments_of_all_of_them(
    read: Read, family: str, schema: Any, expected: Any
) -> None:
    own = {"Sized": TEXT_OR_SIZE[1], "Self": {"$ref": "#/$defs/Self", **TEXT_OR_SIZE[0]}}
    tools = (ToolSpec(name="f", parameters={**schema, "$defs": {**DEFINITIONS, **own}}),)
    arguments = read(family, CALLS[family].replace("@", "3"), tools=tools)[1]
    assert json.loads(arguments.text) == {"x": expected}  # type: ignore[attr-defined]
