"""A coding agent's code mode: one tool, `exec`, that comes with the input and runs programs.

The requests have the form of Codex's: over HTTP each one holds the whole conversation, over a
WebSocket only what is new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from tests.formats.grammar_cases import CODEX_PROGRAM
from tests.http.conftest import create, frames, script
from tests.http.wire.websocket_client import LAST, Client, url_of
from websockets.sync.client import connect

Json = dict[str, Any]
Ask = Callable[[Sequence[Json]], list[Json]]

EXEC = {
    "type": "custom",
    "name": "exec",
    "description": "Runs a program that may call the other tools.",
    "format": {"type": "grammar", "syntax": "lark", "definition": CODEX_PROGRAM},
}
WAIT = {
    "type": "function",
    "name": "wait",
    "description": "Waits for a program.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cell_id": {"type": "string"}},
        "required": ["cell_id"],
        "additionalProperties": False,
    },
}
SLEEP = {"type": "function", "name": "sleep", "strict": False, "parameters": {"type": "object"}}
BROUGHT = {
    "type": "additional_tools",
    "id": "at_1",
    "role": "developer",
    "tools": [
        {"type": "namespace", "name": "functions", "description": "", "tools": [EXEC, WAIT]},
        {"type": "namespace", "name": "clock", "description": "The time.", "tools": [SLEEP]},
    ],
}
INSTRUCTIONS = {
    "type": "message",
    "role": "developer",
    "content": [{"type": "input_text", "text": "You share a workspace with the user."}],
}
FIELDS = {
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "context": "all_turns"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a20790",
    "text": {"verbosity": "low"},
}

PROGRAMS = [
    'const r = await tools.exec_command({cmd: "cat greeting.txt > read.txt"});\ntext(r.output);\n',
    '// @exec: {"yield_time_ms": 9}\ntext(`déjà "vu" \\n ${1 + 1}`); // </tool_call> <|call|>\n\n',
]


def user(*turns: Any) -> Json:
    return {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": script(*turns)}],
    }


def output_of(call: Json) -> Json:
    """Return a program's output, in the parts that Codex sends."""
    texts = ("Script completed\nOutput:\n", "hello\n")
    return {
        "type": f"{call['type']}_output",
        "call_id": call["call_id"],
        "output": [{"type": "input_text", "text": text} for text in texts],
    }


@pytest.fixture(params=["http", "websocket"])
def ask(request: pytest.FixtureRequest, server: Any, model: str) -> Iterator[Ask]:
    """Send what is new in a conversation, and return the events of the response."""
    if request.param == "http":
        history: list[Json] = []

        def ask_over_http(new: Sequence[Json]) -> list[Json]:
            history.extend(new)
            with httpx.Client(base_url=server.api, timeout=30) as http:
                body = {"model": model, "input": history, **FIELDS}
                events = frames(http.post("/responses", json=body).text)
            history.extend(events[-1]["response"]["output"])
            return events

        yield ask_over_http
        return
    with connect(url_of(server), max_size=None, compression=None, proxy=None) as connection:
        client = Client(connection, model)
        previous: Json = {}

        def ask_over_websocket(new: Sequence[Json]) -> list[Json]:
            client.ask(list(new), **FIELDS, **previous)
            events = client.until(*LAST)
            previous["previous_response_id"] = events[-1]["response"]["id"]
            return events

        yield ask_over_websocket


def last_item(events: Sequence[Json]) -> Json:
    assert events[-1]["type"] == "response.completed", events[-1]
    item: Json = events[-1]["response"]["output"][-1]
    return item


@pytest.mark.parametrize("name", ["exec", "functions.exec", "functions__exec"])
def test_programs_arrive_whole_and_their_outputs_are_answered(ask: Ask, name: str) -> None:
    first, second = ({"custom": name, "input": program} for program in PROGRAMS)
    new = [BROUGHT, INSTRUCTIONS, user([{"think": "Look first."}, first], second, {"say": "Done."})]
    for program in PROGRAMS:
        events = ask(new)
        call = last_item(events)
        assert (call["type"], call["name"], call["namespace"]) == (
            "custom_tool_call",
            "exec",
            "functions",
        )
        assert call["input"] == program
        written = [
            event["delta"]
            for event in events
            if event["type"] == "response.custom_tool_call_input.delta"
        ]
        assert "".join(written) == program
        (added,) = (
            event["item"]
            for event in events
            if event["type"] == "response.output_item.added"
            and event["item"]["type"] == "custom_tool_call"
        )
        assert (added["name"], added["namespace"]) == ("exec", "functions")
        new = [output_of(call)]
    assert last_item(ask(new))["content"][0]["text"] == "Done."


def test_the_other_tools_of_both_namespaces_are_called_too(ask: Ask) -> None:
    wait, sleep = {"call": "wait", "args": {"cell_id": "7"}}, {"call": "sleep", "args": {}}
    call = last_item(ask([BROUGHT, user(wait, sleep, {"say": "Done."})]))
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "functions", "wait")
    assert json.loads(call["arguments"]) == {"cell_id": "7"}
    call = last_item(ask([output_of(call)]))
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "clock", "sleep")
    assert last_item(ask([output_of(call)]))["content"][0]["text"] == "Done."


def test_a_user_who_speaks_beside_an_output_is_heard(ask: Ask) -> None:
    program = {"custom": "exec", "input": PROGRAMS[0]}
    call = last_item(ask([BROUGHT, user([{"think": "Look first."}, program])]))
    late = last_item(ask([output_of(call), user({"custom": "exec", "input": PROGRAMS[1]})]))
    assert (late["namespace"], late["input"]) == ("functions", PROGRAMS[1])
    answer = last_item(ask([output_of(late), user({"say": "Both."})]))
    assert answer["content"][0]["text"] == "Both."


def test_a_user_who_interrupts_hides_reasoning_from_chat_templates_alone(
    http: httpx.Client, model: str
) -> None:
    program = {"custom": "exec", "input": PROGRAMS[0]}
    first = create(http, model=model, input=[BROUGHT, user([{"think": "Look first."}, program])])
    new = [output_of(first["output"][-1]), user({"say": "Done."})]
    for context, is_shown in (("auto", model == "scripted-harmony"), ("all_turns", True)):
        second = create(
            http,
            model=model,
            input=new,
            previous_response_id=first["id"],
            reasoning={"context": context},
            enable_response_messages=True,
        )
        # The script that made the model think it is a part of every prompt.
        assert str(second["input_messages"]).count("Look first.") == 1 + is_shown
