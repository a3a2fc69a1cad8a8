"""Turns, and outputs that their constraints allow or refuse, for our matcher and xgrammar's.

The outputs have no stop token: the engine allows it once the tag is matched.
"""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.domain.kinds import web_search
from antiphon.domain.kinds.code_interpreter import PYTHON_SPEC
from antiphon.domain.kinds.file_search import FILE_SEARCH_SPEC
from antiphon.domain.offers.client_tools import CLIENT_TOOLS
from antiphon.domain.offers.offer import ToolDefinition, make_offer
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import Shell, ToolChoice, ToolSpec
from antiphon.domain.vocabulary.typed_call import parameters_of

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


def a_choice(mode: Any, *names: str) -> ToolChoice:
    return ToolChoice(mode=mode, names=frozenset(names) if names else None)


def call(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def hosted_call(recipient: str, body: str, channel: str = "analysis") -> str:
    return f"<|channel|>{channel} to={recipient} code<|message|>{body}"


BROWSER = tuple(web_search.SPECS.values())
ENVIRONMENT = {"type": "container_auto"}
[SHELL] = make_offer(
    [ToolDefinition(tool=Shell(environment=ENVIRONMENT), path="tools[0]", is_server_run=True)], None
).specs
RENAMED_PYTHON = msgspec.structs.replace(PYTHON_SPEC, name="code_interpreter")

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
    "a web search, forced": {
        "turn": {
            "tools": (*BROWSER, WEATHER),
            "choice": a_choice("required", *web_search.SPECS),
        },
        "allowed": [
            hosted_call("browser.search", '{"query": "bonn", "topn": 3}'),
            hosted_call("browser.search", '{"query": "bonn"}', "commentary"),
            THOUGHT + hosted_call("browser.open", '{"id": 3, "cursor": 0}'),
            THOUGHT + hosted_call("browser.open", '{"id": "https://example.org"}'),
            PREAMBLE + hosted_call("browser.find", '{"pattern": "x"}', "commentary"),
        ],
        "refused": [
            FINAL + "Hi",
            hosted_call("browser.search", "{}"),
            hosted_call("browser.search", '{"query": ""}'),
            hosted_call("browser.find", '{"query": "bonn"}'),
            hosted_call("browser.search", '{"query": "bonn"}', "final"),
            hosted_call("functions.web_search", '{"query": "bonn"}'),
            call("get_weather", ARGUMENTS),
        ],
    },
    "commands, forced": {
        "turn": {"tools": (SHELL, WEATHER), "choice": a_choice("required", SHELL.name)},
        "allowed": [
            hosted_call("container.exec", '{"cmd": ["bash", "-lc", "ls"], "timeout": 9}'),
            THOUGHT
            + hosted_call("container.exec", '{"cmd": ["a"], "env": {"A": "b"}}', "commentary"),
        ],
        "refused": [
            FINAL + "Hi",
            hosted_call("container.exec", '{"cmd": "ls"}'),
            hosted_call("container.exec", '{"cmd": []}'),
            hosted_call("container.exec", '{"workdir": "/tmp"}'),
            hosted_call("container.feed", '{"cmd": ["ls"]}'),
            call("get_weather", ARGUMENTS),
        ],
    },
    "code, forced": {
        "turn": {"tools": (PYTHON_SPEC, WEATHER), "choice": a_choice("required", "python")},
        "allowed": [
            hosted_call("python", "print(1)\n"),
            THOUGHT + hosted_call("python", '{"code": "1"}', "commentary"),
        ],
        "refused": [
            FINAL + "Hi",
            hosted_call("python", "1<|end|>"),
            hosted_call("functions.python", "1"),
            call("get_weather", ARGUMENTS),
        ],
    },
    "code, forced, beside a function of its name": {
        "turn": {
            "tools": (RENAMED_PYTHON, a_tool("python")),
            "choice": a_choice("required", RENAMED_PYTHON.name),
        },
        "allowed": [THOUGHT + call(RENAMED_PYTHON.name, '{"code": "print(1)"}')],
        "refused": [hosted_call("python", "print(1)"), call("python", ARGUMENTS), FINAL + "Hi"],
    },
    "a search of files, forced": {
        "turn": {
            "tools": (FILE_SEARCH_SPEC, *BROWSER),
            "choice": a_choice("required", "file_search"),
        },
        "allowed": [THOUGHT + call("file_search", '{"queries": ["a", "b"]}')],
        "refused": [
            FINAL + "Hi",
            call("file_search", '{"queries": []}'),
            call("file_search", '{"query": "a"}'),
            hosted_call("browser.search", '{"query": "bonn"}'),
        ],
    },
    "hosted tools that may be called, beside one that may not": {
        "turn": {
            "tools": (*BROWSER, PYTHON_SPEC, SHELL),
            "choice": a_choice("auto", *web_search.SPECS, "python"),
        },
        "allowed": [
            FINAL + "Hi",
            THOUGHT + hosted_call("browser.search", '{"query": "bonn"}'),
            PREAMBLE + THOUGHT + hosted_call("python", "1"),
        ],
        "refused": [hosted_call("container.exec", '{"cmd": ["ls"]}')],
    },
    "a schema for the answer, beside hosted tools": {
        "turn": {"tools": (*BROWSER, PYTHON_SPEC), "text": ANSWER},
        "allowed": [
            FINAL + '{"a": true}',
            THOUGHT + hosted_call("browser.open", '{"cursor": 1}'),
            hosted_call("python", "1"),
        ],
        "refused": [FINAL + "Hi"],
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
"""Cases that only xgrammar can match."""
