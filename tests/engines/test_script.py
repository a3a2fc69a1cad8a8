"""Where a script is found, what it may say, and which of its turns comes next."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.adapters.engines.scripted.script import next_turn, parse

CALL = {"call": "f", "args": {}}
SAY, AGAIN = {"say": "a"}, {"say": "b"}
ASSISTANT, TOOL, PREAMBLE, REASONING = (
    (role, "…") for role in ("assistant", "tool", "preamble", "reasoning")
)
CALLED, USER = ("call", "f"), ("user", "and then?")


def script(*turns: Any) -> tuple[str, str]:
    return ("user", f"Do it. @@script {json.dumps(turns)}")


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ('@@script [{"say": "a"}]', [[SAY]]),
        ('@@script[{"say":"a"}] and thanks', [[SAY]]),
        ('Hi @@script\n [[{"say": "a"}, {"say": "b"}]]', [[SAY, AGAIN]]),
        ('of @@script I know: @@script [{"say": "a"}]', [[SAY]]),
        (r"@@script [{\"say\": \"a\"}]", [[SAY]]),
        ('@@script [{"say": "@@script [1]"}]', [[{"say": "@@script [1]"}]]),
        ('@@script [{"say": "a", "colour": "red"}]', [[{"say": "a", "colour": "red"}]]),
        ("@@script []", []),
        ("@@script [[]]", [[]]),
    ],
)
def test_a_script_is_the_array_behind_its_mark(text: str, turns: Any) -> None:
    assert parse(text) == turns


@pytest.mark.parametrize(
    "array",
    [
        '[{"say": "a"}',
        '{"say": "a"}',
        "[1]",
        '["say"]',
        '[{"sing": "a"}]',
        '[{"say": "a", "think": "b"}]',
        '[{"say": 1}]',
        '[{"say": "a", "repeat": -1}]',
        '[{"say": "a", "repeat": true}]',
        '[{"say": "a", "phase": "encore"}]',
        '[{"say": "a", "tick": -1}]',
        '[{"say": "a", "tick": NaN}]',
        '[{"say": "a", "chunk": 0}]',
        '[{"say": "a", "chunk": "some"}]',
        '[{"say": "a", "finish": "never"}]',
        '[{"call": "f", "args": 1}]',
        '[{"die": false}]',
        '[{"hang": "long"}]',
        r'[{"say": "\ud800"}]',
        "[" * 100_000,
        "",
    ],
)
def test_what_is_not_valid_is_no_script(array: str) -> None:
    assert parse(f"@@script {array}") is None


@pytest.mark.parametrize("role", ["user", "developer", "system"])
def test_the_user_or_the_developer_carries_the_script(role: str) -> None:
    assert next_turn([(role, script(SAY)[1]), ("user", "go")], tools_offered=False) == [SAY]


@pytest.mark.parametrize("role", ["assistant", "tool", "reasoning", "preamble", "call"])
def test_nobody_else_carries_one(role: str) -> None:
    assert next_turn([(role, script(SAY)[1])], tools_offered=False) is None


def test_the_newest_script_counts() -> None:
    assert next_turn([script(SAY), ASSISTANT, script(AGAIN)], tools_offered=False) == [AGAIN]


def test_a_newest_script_that_is_not_valid_does_not_uncover_an_older_one() -> None:
    assert next_turn([script(SAY), ("user", "@@script [")], tools_offered=False) is None


RAW = {"raw": "<call>f {}</call>"}

TURNS: list[tuple[str, list[Any], list[tuple[str, str]], Any]] = [
    ("the first at first", [SAY, AGAIN], [], [SAY]),
    ("the second once the first is said", [SAY, AGAIN], [ASSISTANT, USER], [AGAIN]),
    ("none past the end", [SAY], [ASSISTANT, USER], None),
    ("none of an empty script", [], [], None),
    ("a call until it has its output", [CALL, SAY], [CALLED], [CALL]),
    ("what follows the call once it has", [CALL, SAY], [CALLED, TOOL], [SAY]),
    ("two calls need two outputs", [[CALL, CALL], SAY], [CALLED, CALLED, TOOL], [CALL, CALL]),
    ("and have them", [[CALL, CALL], SAY], [CALLED, TOOL, CALLED, TOOL], [SAY]),
    ("outputs count from the script on", [CALL, CALL, SAY], [CALLED, TOOL], [CALL]),
    ("a preamble is no reply", [[SAY, CALL], AGAIN], [PREAMBLE, CALLED, TOOL], [AGAIN]),
    ("say, call, say", [SAY, CALL, AGAIN], [ASSISTANT, USER], [CALL]),
    ("say, call, say, done", [SAY, CALL, AGAIN], [ASSISTANT, USER, CALLED, TOOL], [AGAIN]),
    ("reasoning is no reply", [[{"think": "t"}, SAY], AGAIN], [REASONING, ASSISTANT], [AGAIN]),
    ("two messages of one turn", [[SAY, AGAIN], SAY], [ASSISTANT, ASSISTANT, USER], [SAY]),
    ("or put into one", [[SAY, AGAIN], SAY], [ASSISTANT, USER], [SAY]),
    ("two turns on end", [SAY, AGAIN, {"refuse": "c"}], [ASSISTANT, ASSISTANT], [{"refuse": "c"}]),
    ("an empty turn", [[], SAY], [], []),
    ("raw markup at first", [RAW, SAY], [], [RAW]),
    ("raw markup that was a call", [RAW, SAY], [CALLED, TOOL], [SAY]),
    ("raw markup that was a reply", [RAW, CALL], [ASSISTANT, USER], [CALL]),
    ("raw markup, then a call's output", [RAW, CALL, SAY], [CALLED, TOOL, CALLED, TOOL], [SAY]),
]


@pytest.mark.parametrize(
    ("turns", "after", "played"), [t[1:] for t in TURNS], ids=[t[0] for t in TURNS]
)
def test_the_first_turn_that_is_not_complete_is_played(
    turns: list[Any], after: list[tuple[str, str]], played: Any
) -> None:
    assert next_turn([TOOL, ASSISTANT, script(*turns), *after], tools_offered=True) == played


@pytest.mark.parametrize("call", [CALL, {"custom": "c", "input": ""}, {"mcp": "m", "args": "{"}])
def test_a_turn_that_calls_is_passed_over_where_no_tool_is_offered(call: Any) -> None:
    messages = [script(call, SAY)]
    assert next_turn(messages, tools_offered=True) == [call]
    assert next_turn(messages, tools_offered=False) is None
