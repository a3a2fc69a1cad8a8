"""A script that cannot be played is a 400 that names the part, on both scripted models."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, text_of
from websockets.sync.client import connect

ADD = {"type": "function", "name": "add"}
PARTS = "parts are say, think, call, custom, mcp, python, refuse, raw, fail, die, hang"


def refusal(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/responses", json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("way", [{}, {"stream": True}, {"background": True}])
def test_a_misspelt_part_is_refused_by_its_place(
    http: httpx.Client, model: str, way: dict[str, Any]
) -> None:
    asked = script([{"say": "a"}, {"cal": "add", "args": {}}])
    assert refusal(http, model=model, input=asked, tools=[ADD], **way) == {
        "message": "The script cannot be played: turn 1, part 2: unknown key 'cal'; "
        f"did you mean 'call'? {PARTS}.",
        "type": "invalid_request_error",
        "param": "input",
        "code": "invalid_value",
    }


def test_a_script_that_is_not_json_is_refused(http: httpx.Client, model: str) -> None:
    error = refusal(http, model=model, input='@@script [{"say": "a"},]')
    assert error["message"].startswith("The script cannot be played: it is not JSON: ")


@pytest.mark.parametrize(
    ("call", "tool"),
    [
        ({"call": "ad", "args": {}}, "tool 'ad' for 'call'"),
        ({"custom": "patch", "input": ""}, "tool 'patch' for 'custom'"),
        ({"mcp": "convert", "server": "lengths"}, "tool 'convert' for 'mcp'"),
        ({"python": "print(1)"}, "tool for 'python'"),
    ],
)
def test_a_call_of_a_tool_that_is_not_offered_is_refused(
    http: httpx.Client, model: str, call: dict[str, Any], tool: str
) -> None:
    error = refusal(http, model=model, input=script([{"say": "a"}, call]), tools=[ADD])
    assert error["message"] == (
        f"The script cannot be played: turn 1, part 2: the request offers no {tool}; to call it "
        'anyway, add "unknown_tool": true.'
    )


def test_a_script_can_call_an_unknown_tool_explicitly(http: httpx.Client, model: str) -> None:
    call = {"call": "ad", "args": {"a": 1}, "unknown_tool": True}
    response = create(http, model=model, input=script(call), tools=[ADD])
    assert not any(item["type"] == "function_call" for item in response["output"])
    assert '{"a": 1}' in text_of(response)


def test_a_later_turn_that_cannot_be_played_fails_when_it_comes(
    http: httpx.Client, model: str
) -> None:
    asked = script({"call": "add"}, {"call": "ad"})
    first = create(http, model=model, input=asked, tools=[ADD])
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
    error = refusal(
        http, model=model, input=[output], tools=[ADD], previous_response_id=first["id"]
    )
    assert "turn 2, part 1: the request offers no tool 'ad'" in error["message"]


def test_a_side_request_without_tools_still_passes_over_a_script_that_calls(
    http: httpx.Client, model: str
) -> None:
    asked = f"Name this talk. {script({'call': 'add'})}"
    response = create(http, model=model, input=asked)
    assert text_of(response) == "The script calls a tool here, and this request offers none."
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    form = {"type": "json_schema", "name": "title", "schema": schema}
    response = create(http, model=model, input=asked, text={"format": form})
    assert text_of(response) == '{"title":""}'


def _assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "type": "message", "content": text, **more}


USER = {"role": "user", "content": "go on"}
THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
ADD_CALL = {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "3"}
SAYS = [{"say": text} for text in ("one", "two", "three", "four")]
CALLS = [[{"say": "look"}, {"call": "add", "args": {}}], *SAYS]


@pytest.mark.parametrize(
    ("turns", "items", "played"),
    [
        (SAYS, [_assistant("a"), _assistant("b")], "three"),
        (SAYS, [_assistant("a"), _assistant("b"), _assistant("c")], "four"),
        (SAYS, [_assistant("a"), USER, _assistant("b")], "three"),
        (SAYS, [_assistant("a"), _assistant("b"), USER, _assistant("c")], "four"),
        (SAYS, [THOUGHT, _assistant("a"), _assistant("b")], "three"),
        (SAYS, [_assistant("a", phase="commentary"), _assistant("b")], "three"),
        (CALLS, [_assistant("a"), ADD_CALL, OUTPUT], "one"),
        (CALLS, [_assistant("a"), _assistant("b"), ADD_CALL, OUTPUT], "one"),
        (CALLS, [_assistant("a"), ADD_CALL, _assistant("b"), OUTPUT], "one"),
        (CALLS, [ADD_CALL, OUTPUT, _assistant("a"), _assistant("b")], "three"),
        ([SAYS[:2], *SAYS[2:]], [_assistant("a"), _assistant("b")], "three"),
        ([SAYS[:2], *SAYS[2:]], [_assistant("ab")], "three"),
    ],
)
def test_both_models_count_the_messages_of_a_history_alike(
    http: httpx.Client, model: str, turns: list[Any], items: list[Any], played: str
) -> None:
    asked = {"role": "user", "content": script(*turns)}
    tools = [{"type": "function", "name": "add"}] if ADD_CALL in items else []
    assert text_of(create(http, model=model, input=[asked, *items], tools=tools)) == played


def test_on_a_websocket_it_is_an_error_frame(server: Any, model: str) -> None:
    asked = {"type": "response.create", "model": model, "input": script({"sing": "a"})}
    with connect(server.api.replace("http", "ws", 1) + "/responses") as connection:
        connection.send(json.dumps(asked))
        frame = json.loads(connection.recv(timeout=30))
    assert (frame["type"], frame["error"]["param"]) == ("error", "input")
