"""The shapes in which models write calls without their markers, and the texts that are no calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.formats.unmarked_calls.searches import TOOLS, WEATHER, read, turn_of

from antiphon.adapters.formats.unmarked_calls import search_of
from antiphon.application.ports import Constraint, Sampling
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import ToolChoice, ToolSpec

ARGUMENTS = '{"city": "Oslo"}'
CALL = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
OSLO = ("get_weather", ARGUMENTS)
NOW_CALL = '{"name": "now", "arguments": {}}'
NOW = ("now", "{}")
QUOTED = json.dumps(ARGUMENTS)

SHAPES: dict[str, tuple[str, list[Any]]] = {
    "bare": (CALL, [OSLO]),
    "bare, with space around": (f"\n {CALL}\n\n", [OSLO]),
    "pretty": (
        '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo"\n  }\n}',
        [("get_weather", '{\n    "city": "Oslo"\n  }')],
    ),
    "fence": (f"```json\n{CALL}\n```", [OSLO]),
    "fence on one line": (f"```json {CALL} ```", [OSLO]),
    "fence without a language": (f"```\n{CALL}\n```\n", [OSLO]),
    "fence of a call": (f"```tool_call\n{CALL}\n```", [OSLO]),
    "fence that does not end": (f"```json\n{CALL}", [OSLO]),
    "fence, then words": (f"```json\n{CALL}\n```\n\nDone.", [OSLO, "Done."]),
    "words, then a fence": (f"Let me look.\n\n```json\n{CALL}\n```", ["Let me look.", OSLO]),
    "words, a fence, words": (f"First:\n```\n{CALL}\n```\nThen.", ["First:", OSLO, "Then."]),
    "two fences": (
        f"```json\n{CALL}\n```\n\n```json\n{NOW_CALL}\n```",
        [OSLO, NOW],
    ),
    "two fences with words between": (
        f"One:\n```json\n{CALL}\n```\nTwo:\n```json\n{NOW_CALL}\n```\n",
        ["One:", OSLO, "Two:", NOW],
    ),
    "two calls in a fence": (f"```json\n{CALL}\n{NOW_CALL}\n```", [OSLO, NOW]),
    "words, then lines": (f"I will look it up.\n{CALL}", ["I will look it up.", OSLO]),
    "lines, then words": (f"{CALL}\n\nI wait.", [OSLO, "I wait."]),
    "lines": (f"{CALL}\n{NOW_CALL}", [OSLO, NOW]),
    "calls with semicolons": (f"{CALL}; {NOW_CALL}", [OSLO, NOW]),
    "calls with commas": (f"{CALL},\n{NOW_CALL}", [OSLO, NOW]),
    "list": (f"[{CALL}, {NOW_CALL}]", [OSLO, NOW]),
    "list in a fence": (f"```json\n[\n  {CALL},\n  {NOW_CALL}\n]\n```", [OSLO, NOW]),
    "<tools>": (f"<tools>\n{CALL}\n</tools>", [OSLO]),
    "<tool>": (f"<tool>{CALL}</tool>", [OSLO]),
    "<function_call>": (f"<function_call>{CALL}</function_call>", [OSLO]),
    "<tool_call>": (f"<tool_call>\n{CALL}\n</tool_call>", [OSLO]),
    "<tool_call> without its end": (f"<tool_call>\n{CALL}\n", [OSLO]),
    "an end alone": (f"{CALL}\n</tool_call>", [OSLO]),
    "<tool_calls> of a list": (f"<tool_calls>[{CALL}]</tool_calls>", [OSLO]),
    "two tags": (
        f"<tool_call>{CALL}</tool_call>\n<tool_call>{NOW_CALL}</tool_call>",
        [OSLO, NOW],
    ),
    "a tag, then words": (f"<tools>{CALL}</tools>\nI wait.", [OSLO, "I wait."]),
    "a fence in a tag": (f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>", [OSLO]),
    "a tag in a fence": (f"```xml\n<tool_call>\n{CALL}\n</tool_call>\n```", [OSLO]),
    "[TOOL_CALLS]": (f"[TOOL_CALLS] [{CALL}]", [OSLO]),
    "<|python_tag|>": (f"<|python_tag|>{CALL}", [OSLO]),
    "parameters": (f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', [OSLO]),
    "arguments first": (f'{{"arguments": {ARGUMENTS}, "name": "get_weather"}}', [OSLO]),
    "arguments in a string": (f'{{"name": "get_weather", "arguments": {QUOTED}}}', [OSLO]),
    "with an id": (f'{{"id": "call_1", "name": "get_weather", "arguments": {ARGUMENTS}}}', [OSLO]),
    "with a type": (
        f'{{"type": "function", "name": "get_weather", "parameters": {ARGUMENTS}}}',
        [OSLO],
    ),
    "as the API has it": (
        f'{{"id": "c", "type": "function", "function": {{"name": "get_weather", '
        f'"arguments": {QUOTED}}}}}',
        [OSLO],
    ),
    "function for name": (f'{{"function": "get_weather", "arguments": {ARGUMENTS}}}', [OSLO]),
    "functions. before the name": (
        f'{{"name": "functions.get_weather", "arguments": {ARGUMENTS}}}',
        [OSLO],
    ),
    "a name without its namespace": ('{"name": "find", "arguments": {}}', [("find", "{}")]),
    "a custom tool": ('{"name": "note", "arguments": {"input": "a \\"b\\""}}', [("note", 'a "b"')]),
    "brackets in a string": (
        '{"name": "get_weather", "arguments": {"city": "}]```\\" {"}}',
        [("get_weather", '{"city": "}]```\\" {"}')],
    ),
    "every member": (
        '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3, "unit": "C"}}',
        [("get_weather", '{"city": "Oslo", "days": 3, "unit": "C"}')],
    ),
    "after other code": (
        f"```python\nx = [1]\n```\nNow:\n```json\n{CALL}\n```",
        ["```python\nx = [1]\n```\nNow:", OSLO],
    ),
    "after other JSON": (f'{{"a": [1, "}}"]}}\n\n{CALL}', ['{"a": [1, "}"]}', OSLO]),
    "after a link": (f"[see](http://a.b)\n{CALL}", ["[see](http://a.b)", OSLO]),
}

SCHEMA = json.dumps(WEATHER)

NO_CALLS = {
    # --- words around it
    "a sentence before": f"Send {CALL} to it.",
    "a sentence after": f"{CALL} is how you call it.",
    "code in a sentence": f"Write `{CALL}` and wait.",
    "code on a line": f"`{CALL}`",
    "quotes": f'"{CALL}"',
    "parentheses": f"({CALL})",
    "a quotation": f"> {CALL}",
    "a list of Markdown": f"- {CALL}",
    "a numbered list": f"1. {CALL}",
    "a table": f"| call |\n|---|\n| {CALL} |",
    "a label on the line": f"Action: {CALL}",
    "a fence with a comment": f"```json\n// the call\n{CALL}\n```",
    "a fence with words after": f"```json\n{CALL}\nand so on\n```",
    "a fence with two kinds": f'```json\n{CALL}\n{{"a": 1}}\n```',
    "a fence of Python": f"```python\n{CALL}\n```",
    "a fence of a program": f"```python\ncall = {CALL}\nsend(call)\n```",
    "a program with lines": f"```js\nsend(\n{CALL}\n)\n```",
    "a program without a fence": f"send(\n{CALL}\n)",
    "an assignment": f"call =\n{CALL}",
    "a list that is assigned": f"calls = [\n{CALL}\n]",
    "a list with another element": f"[{CALL}, 3]",
    "a list in a list": f"[[{CALL}]]",
    "an empty list": "[]",
    "an open list": f"[{CALL}",
    "a list with a comma at its end": f"[{CALL},]",
    "JSON around it": f'{{"tool_calls": [\n{CALL}\n]}}',
    "JSON around it, on lines": f'{{\n"call":\n{CALL}\n}}',
    "YAML around it": f'"call":\n{CALL}\n',
    "a comma after it": f"{CALL},\n",
    "an unknown tag": f"<example>\n{CALL}\n</example>",
    "an unknown tag on the line": f"<example>{CALL}</example>",
    "HTML": f"<pre>\n{CALL}\n</pre>",
    "a tag with words": f"<tools>the weather\n{CALL} </tools> etc.",
    "a shell": f"curl -d '\n{CALL}\n'",
    "a method call after it": f"{CALL}\n.send()",
    # --- other shapes
    "another object": '{"city": "Oslo", "days": 3}',
    "another object in a fence": '```json\n{"city": "Oslo"}\n```',
    "configuration": '```json\n{\n  "name": "my-app",\n  "version": "1.0.0"\n}\n```',
    "a package": '{"name": "get_weather", "version": "1.0.0", "arguments": {"city": "Oslo"}}',
    "another key at the end": f'{{"name": "get_weather", "arguments": {ARGUMENTS}, "result": 3}}',
    "another key in the function": (
        f'{{"function": {{"name": "get_weather", "arguments": {ARGUMENTS}, "x": 1}}}}'
    ),
    "a function in a function": '{"function": {"function": {"name": "now", "arguments": {}}}}',
    "both arguments and parameters": '{"name": "now", "arguments": {}, "parameters": {}}',
    "a key twice": '{"name": "now", "name": "now", "arguments": {}}',
    "another type": '{"type": "object", "name": "now", "parameters": {}}',
    "a name alone": '{"name": "now"}',
    "arguments alone": '{"arguments": {}}',
    "a list as arguments": '{"name": "now", "arguments": []}',
    "null as arguments": '{"name": "now", "arguments": null}',
    "a number as arguments": '{"name": "now", "arguments": 3}',
    "a string as arguments": '{"name": "now", "arguments": "none"}',
    "a list in a string": '{"name": "now", "arguments": "[]"}',
    "an empty object": "{}",
    "a name as key": '{"get_weather": {"city": "Oslo"}}',
    "the tool itself": json.dumps(
        {"name": "get_weather", "description": "d", "parameters": WEATHER}
    ),
    "the tool without a description": f'{{"name": "get_weather", "parameters": {SCHEMA}}}',
    "the tool in a function": (
        f'{{"type": "function", "function": {{"name": "get_weather", "parameters": {SCHEMA}}}}}'
    ),
    "the tools in their tag": (
        f'<tools>\n{{"name": "get_weather", "parameters": {SCHEMA}}}\n</tools>'
    ),
    "a result": '{"name": "get_weather", "content": {"temperature": 3}}',
    "Python": "{'name': 'get_weather', 'arguments': {'city': 'Oslo'}}",
    "Python's values": '{"name": "get_weather", "arguments": {"city": None}}',
    "a comment in it": '{"name": "get_weather", "arguments": {"city": "Oslo" // there\n}}',
    "a sum in it": '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3 * 2}}',
    "NaN in it": '{"name": "crm__find", "arguments": {"x": NaN}}',
    "a line end in a string": '{"name": "get_weather", "arguments": {"city": "Os\nlo"}}',
    "a template": '{"name": {{name}}, "arguments": {{arguments}}}',
    "braces of a program": "{ int x = 3; }",
    "a function call of Python": 'get_weather(city="Oslo")',
    # --- names and arguments
    "an unknown name": '{"name": "get_time", "arguments": {"city": "Oslo"}}',
    "an unknown name in a fence": '```json\n{"name": "get_time", "arguments": {}}\n```',
    "a longer name": '{"name": "get_weather_now", "arguments": {"city": "Oslo"}}',
    "an empty name": '{"name": "", "arguments": {}}',
    "a number as name": '{"name": 3, "arguments": {}}',
    "one known, one not": f'{CALL}\n{{"name": "get_time", "arguments": {{}}}}',
    "a missing argument": '{"name": "get_weather", "arguments": {}}',
    "a wrong type": '{"name": "get_weather", "arguments": {"city": 3}}',
    "an unknown argument": '{"name": "get_weather", "arguments": {"city": "Oslo", "zip": 1}}',
    "another value of an enum": '{"name": "get_weather", "arguments": {"city": "x", "unit": "K"}}',
    "too small": '{"name": "get_weather", "arguments": {"city": "x", "days": 0}}',
    "no input of a custom tool": '{"name": "note", "arguments": {"text": "x"}}',
    "more than a custom tool's input": '{"name": "note", "arguments": {"input": "x", "y": 1}}',
    "a tool with a grammar": '{"name": "dsl", "arguments": {"input": "aaa"}}',
    # --- parts
    "an open object": '{"name": "get_weather", "arguments": {"city": "Oslo"}',
    "an open string": '{"name": "get_weather", "arguments": {"city": "Os',
    "an open name": '{"name": "get_wea',
    "only a fence": "```json\n",
    "only a tag": "<tool_call>",
    "a tag and its end": "<tool_call>\n</tool_call>",
    "an empty fence": "```json\n```",
    "no JSON at all": "It is 3 degrees in Oslo.\n\nDress warmly. ",
    "whitespace": " \n\t ",
}


@pytest.mark.parametrize(("text", "expected"), SHAPES.values(), ids=SHAPES)
def test_a_block_that_is_nothing_but_calls_is_calls(text: str, expected: list[Any]) -> None:
    assert read(text) == expected
    assert read(list(text)) == expected


@pytest.mark.parametrize("text", NO_CALLS.values(), ids=NO_CALLS)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert read(text) == [text]
    assert read(list(text)) == [text]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": ()},
        {"choice": ToolChoice(mode="none")},
        {"text": TextConfig(format={"type": "json_object"})},
        {"sampling": Sampling(constraint=Constraint(kind="regex", value="a+"))},
    ],
    ids=["no tools", "tool_choice none", "JSON is asked for", "a grammar"],
)
def test_a_turn_without_free_text_and_tools_is_not_searched(fields: dict[str, Any]) -> None:
    assert search_of(turn_of()) is not None
    assert search_of(turn_of(**fields)) is None


def test_a_tool_that_the_choice_leaves_out_is_not_called() -> None:
    choice = ToolChoice(names=frozenset({"now"}))
    assert read(CALL, choice=choice) == [CALL]
    assert read(NOW_CALL, choice=choice) == [NOW]


def test_a_strict_tool_is_called_only_if_all_of_its_schema_was_checked() -> None:
    for keyword in ({"pattern": "^O"}, {"format": "city"}):
        city = {"type": "string", **keyword}
        schema = {"type": "object", "properties": {"city": city}, "required": ["city"]}
        tools = [ToolSpec(name="get_weather", parameters=schema, strict=True)]
        assert read(CALL, tools=tools) == [CALL]
        tools = [ToolSpec(name="get_weather", parameters=schema)]
        assert read(CALL, tools=tools) == [OSLO]
    strict = [ToolSpec(name="get_weather", parameters=WEATHER, strict=True), *TOOLS[1:]]
    assert read(CALL, tools=strict) == [OSLO]


def test_a_block_that_is_too_long_is_text() -> None:
    text = json.dumps({"name": "crm__find", "arguments": {"x": "a" * 200_000}})
    assert read([text[at : at + 1000] for at in range(0, len(text), 1000)]) == [text]
