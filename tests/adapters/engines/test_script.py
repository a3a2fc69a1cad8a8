"""Where a script is found, what it may say, and which of its turns comes next."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.adapters.engines.scripted.script import UNOFFERED, InvalidScript, next_turn, parse

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
        ('@@script [{"say": "a", "logprobs": true}]', [[{"say": "a", "logprobs": True}]]),
        ("@@script []", []),
        ("@@script [[]]", [[]]),
    ],
)
def test_a_script_is_the_array_behind_its_mark(text: str, turns: Any) -> None:
    assert parse(text) == turns


PARTS = "parts are say, think, call, custom, mcp, python, refuse, raw, fail, die, hang"


@pytest.mark.parametrize(
    ("array", "why"),
    [
        ('[{"say": "a"}', "it is not JSON: Expecting ',' delimiter at character 14 of the array"),
        ('[{"say": "a",}]', "it is not JSON: "),
        ('{"say": "a"}', "it must be an array of turns, [{…}], not an object"),
        ("[1]", "turn 1, part 1: a part must be an object, not 1"),
        ('["say"]', "turn 1, part 1: a part must be an object, not 'say'"),
        (
            '[{"say": "a"}, [{"say": "b"}, {"cal": "f"}]]',
            f"turn 2, part 2: unknown key 'cal'; did you mean 'call'? {PARTS}",
        ),
        ('[{"sing": "a"}]', "turn 1, part 1: unknown key 'sing'; "),
        (
            '[{"call": "f", "arg": {}}]',
            f"turn 1, part 1: unknown key 'arg'; did you mean 'args'? {PARTS}",
        ),
        (
            '[{"args": {}}]',
            f"turn 1, part 1: a part needs one of the keys that say what the model does; {PARTS}",
        ),
        (
            '[{"say": "a", "think": "b"}]',
            "turn 1, part 1: 'say' and 'think' are parts of their own: write one after the other",
        ),
        ('[{"say": 1}]', "turn 1, part 1: 'say' must be a string, not 1"),
        (
            '[{"say": "a", "repeat": -1}]',
            "turn 1, part 1: 'repeat' must be a whole number, 0 or more, not -1",
        ),
        ('[{"say": "a", "repeat": true}]', "not True"),
        (
            '[{"say": "a", "phase": "encore"}]',
            """turn 1, part 1: 'phase' must be "commentary" or "final_answer", not 'encore'""",
        ),
        ('[{"say": "a", "tick": -1}]', "'tick' must be a number of seconds, 0 or more, not -1"),
        ('[{"say": "a", "tick": NaN}]', "'tick' must be a number of seconds"),
        (
            '[{"say": "a", "chunk": 0}]',
            """'chunk' must be a whole number above 0, or "all", not 0""",
        ),
        ('[{"say": "a", "chunk": "some"}]', "not 'some'"),
        ('[{"say": "a", "finish": "never"}]', "'finish' must be "),
        ('[{"call": "f", "args": 1}]', "'args' must be an object or a string, not 1"),
        ('[{"call": "f", "unknown_tool": false}]', "'unknown_tool' must be true, not False"),
        ('[{"die": false}]', "'die' must be true, not False"),
        ('[{"hang": "long"}]', "'hang' must be a number of seconds"),
        (r'[{"say": "\ud800"}]', "it has half a surrogate pair"),
        ("[" * 100_000, "it is not JSON: "),
    ],
)
def test_a_script_that_is_not_valid_is_refused_by_its_place(array: str, why: str) -> None:
    with pytest.raises(InvalidScript) as refused:
        parse(f"@@script {array}")
    assert why in str(refused.value)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize("text", ["@@script", "@@script ", "what is @@script?", "no script"])
def test_a_text_without_an_array_behind_the_mark_has_no_script(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("role", ["user", "developer", "system"])
def test_the_user_or_the_developer_carries_the_script(role: str) -> None:
    assert next_turn([(role, script(SAY)[1]), ("user", "go")], tools_offered=False) == [SAY]


@pytest.mark.parametrize("role", ["assistant", "tool", "reasoning", "preamble", "call"])
def test_nobody_else_carries_one(role: str) -> None:
    assert next_turn([(role, script(SAY)[1])], tools_offered=False) is None


def test_the_newest_script_counts() -> None:
    assert next_turn([script(SAY), ASSISTANT, script(AGAIN)], tools_offered=False) == [AGAIN]


def test_a_newest_script_that_is_not_valid_does_not_uncover_an_older_one() -> None:
    with pytest.raises(InvalidScript):
        next_turn([script(SAY), ("user", "@@script [")], tools_offered=False)


def test_an_older_script_that_is_not_valid_hurts_nobody() -> None:
    assert next_turn([("user", "@@script ["), script(SAY)], tools_offered=False) == [SAY]


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
    ("text before a call is no reply", [CALL, SAY], [ASSISTANT, PREAMBLE, CALLED, TOOL], [SAY]),
    ("text after a call is no reply", [CALL, SAY], [CALLED, ASSISTANT, TOOL], [SAY]),
    ("raw markup of two messages", [RAW, SAY], [ASSISTANT, ASSISTANT, USER], [SAY]),
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
    assert next_turn(messages, tools_offered=False) is UNOFFERED


def test_a_call_of_a_tool_that_is_not_offered_is_refused_in_its_turn() -> None:
    messages = [script(SAY, [SAY, {"call": "g"}])]
    offered = {"tools_offered": True, "offers": lambda part: part.get("call") != "g"}
    assert next_turn(messages, **offered) == [SAY]
    with pytest.raises(InvalidScript) as refused:
        next_turn([*messages, ASSISTANT, USER], **offered)
    assert str(refused.value) == (
        "turn 2, part 2: the request offers no tool 'g' for 'call'; to call it anyway, add "
        '"unknown_tool": true'
    )


def test_a_call_that_says_that_its_tool_is_unknown_is_played() -> None:
    call = {"call": "g", "unknown_tool": True}
    assert next_turn([script(call)], tools_offered=True, offers=lambda _: False) == [call]
