"""Turns, and what their constraint lets the model write: for our matcher and for xgrammar's.

Without the stop token, which the engine allows by itself where the tag is matched.
"""

from __future__ import annotations

from typing import Any

from antiphon.domain.client_tools import CLIENT_TOOLS, parameters_of
from antiphon.domain.response import TextConfig
from antiphon.domain.tools import Choice, ToolSpec

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Berlin"]},
        "n": {"type": "integer"},
    },
    "required": ["city", "n"],
    "additionalProperties": False,
}
ARGUMENTS = '{"city": "Paris", "n": 3}'
WRONG = '{"city": "Rome", "n": 3}'

THOUGHT = "<|channel|>analysis<|message|>Let me\n<think>.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"


def a_tool(name: str, **fields: Any) -> ToolSpec:
    return ToolSpec(name=name, **({} if "kind" in fields else {"parameters": CITY}), **fields)


def a_choice(mode: Any, *names: str) -> Choice:
    return Choice(mode=mode, names=frozenset(names) if names else None)


def call(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


ANSWER = TextConfig(
    format={
        "type": "json_schema",
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }
)
WEATHER = a_tool("get_weather")
STRICT = a_tool("strict", strict=True)
PATCH = ToolSpec(
    name="apply_patch",
    kind="apply_patch",
    parameters=parameters_of(CLIENT_TOOLS["apply_patch"].arguments),
    strict=True,
)
NOTE = a_tool("note", kind="custom")
CODE = a_tool("code", kind="custom", grammar=("regex", "[a-c]{2,4}!"))
LINES = a_tool("lines", kind="custom", grammar=("lark", 'start: (/"[a-c\\\\]+"/ "\\n")+'))

CASES: dict[str, dict[str, Any]] = {
    "a required call": {
        "turn": {"tools": (WEATHER, NOTE), "choice": a_choice("required")},
        "allowed": [
            call("get_weather", ARGUMENTS),
            THOUGHT + call("get_weather", ARGUMENTS),
            THOUGHT + PREAMBLE + THOUGHT + call("get_weather", ARGUMENTS),
            f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}",
            call("get_weather", ARGUMENTS).replace(" <|constrain|>", "<|constrain|>"),
            call("note", '{"input": "x"}'),
        ],
        "refused": [
            FINAL + "Hi",
            THOUGHT + FINAL + "Hi",
            call("get_weather", WRONG),
            call("get_weather", ARGUMENTS) + "<|end|>",
            call("get_weathe", ARGUMENTS),
            "Hello",
        ],
    },
    "a required call without reasoning": {
        "turn": {"tools": (WEATHER,), "choice": a_choice("required"), "effort": "none"},
        "allowed": [call("get_weather", ARGUMENTS)],
        "refused": [
            THOUGHT + call("get_weather", ARGUMENTS),
            PREAMBLE + call("get_weather", ARGUMENTS),
        ],
    },
    "a named call": {
        "turn": {"tools": (WEATHER, STRICT), "choice": a_choice("required", "strict")},
        "allowed": [THOUGHT + call("strict", ARGUMENTS)],
        "refused": [call("get_weather", ARGUMENTS), call("strict", WRONG), FINAL + "Hi"],
    },
    "only some tools": {
        "turn": {"tools": (WEATHER, NOTE), "choice": a_choice("auto", "note")},
        "allowed": [
            FINAL + "Hi",
            THOUGHT + call("note", '{"input": "x"}'),
            PREAMBLE + FINAL + "Hi",
        ],
        "refused": [call("get_weather", ARGUMENTS)],
    },
    "strict tools": {
        "turn": {"tools": (WEATHER, STRICT)},
        "allowed": [FINAL + "Hi", call("strict", ARGUMENTS), call("get_weather", '{"x": 1}')],
        "refused": [call("strict", WRONG), call("other", "{}"), call("get_weather", "nonsense")],
    },
    "a tool that the client runs, forced": {
        "turn": {"tools": (PATCH, WEATHER), "choice": a_choice("required", "apply_patch")},
        "allowed": [
            THOUGHT + call("apply_patch", '{"operation": {"type": "delete_file", "path": "a"}}')
        ],
        "refused": [
            call("apply_patch", '{"operation": {"type": "update_file", "path": "a"}}'),
            call("apply_patch", '{"patch": "x"}'),
            call("get_weather", ARGUMENTS),
        ],
    },
    "a schema for the answer": {
        "turn": {"tools": (), "text": ANSWER},
        "allowed": [
            THOUGHT + FINAL + '{"a": true}',
            THOUGHT + '<|channel|>final <|constrain|>json<|message|>{"a": true}',
        ],
        "refused": [FINAL + "yes", FINAL + '{"a": 1}', PREAMBLE + FINAL + '{"a": true}'],
    },
    "a schema for the answer, without reasoning": {
        "turn": {"tools": (), "text": ANSWER, "effort": "none"},
        "allowed": [FINAL + '{"a": true}', '<|channel|>final json<|message|>{"a": false}'],
        "refused": [THOUGHT + FINAL + '{"a": true}', "{}"],
    },
    "any JSON object": {
        "turn": {"tools": (), "text": TextConfig(format={"type": "json_object"})},
        "allowed": [FINAL + '{"b": [1, null]}'],
        "refused": [FINAL + "[1]", FINAL + "b"],
    },
    "a schema for the answer, and tools": {
        "turn": {"tools": (WEATHER,), "text": ANSWER},
        "allowed": [FINAL + '{"a": true}', THOUGHT + call("get_weather", "{}")],
        "refused": [FINAL + "Hi"],
    },
    "no reasoning": {
        "turn": {"tools": (), "effort": "none"},
        "allowed": [FINAL + "Anything\n<b>", FINAL],
        "refused": [THOUGHT + FINAL + "Hi", "Hi", FINAL + "Hi<|end|>"],
    },
}

GRAMMAR_CASES: dict[str, dict[str, Any]] = {
    "a pattern for a custom tool": {
        "turn": {"tools": (CODE,)},
        "allowed": [call("code", '{"input": "abc!"}'), THOUGHT + FINAL + "Hi"],
        "refused": [call("code", '{"input": "abd!"}'), call("code", "abc!")],
    },
    "a grammar for a custom tool": {
        "turn": {"tools": (LINES, WEATHER), "choice": a_choice("required", "lines")},
        "allowed": [
            call("lines", r'{"input": "\"a\"\n"}'),
            THOUGHT + call("lines", r'{"input": "\"ab\\\"\n\"c\"\n"}'),
        ],
        "refused": [
            call("lines", r'{"input": "\"a\""}'),
            call("lines", r'{"input": "\"a"\n"}'),
            call("lines", r'{"input": "\"d\"\n"}'),
            call("get_weather", ARGUMENTS),
            FINAL + "Hi",
        ],
    },
}
"""What no matcher of ours understands."""
