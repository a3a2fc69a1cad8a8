"""Tools of a fixed shape that the client runs: offered, called, answered, on both models."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from tests.http.conftest import create

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
Json = dict[str, Any]

CLICK = {"type": "click", "button": "left", "x": 3, "y": 4}
DELETE = {"type": "delete_file", "path": "a.txt"}
UPDATE = {"type": "update_file", "path": "b/ä.py", "diff": '@@ def f():\n-    a\n+    "b"\n'}
SHOT = {"type": "computer_screenshot", "image_url": "data:image/gif;base64,R0lGODlhAQABAAAAADs="}
OUTPUT = [{"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
PREVIEW = {
    "type": "computer_use_preview",
    "display_width": 800,
    "display_height": 600,
    "environment": "linux",
}
EXEC = {"type": "exec", "command": ["ls", "-l"], "env": {}}

KINDS: Json = {
    # tool, its name, arguments; the item's fields; the output that answers it
    "shell": (
        {"type": "shell"},
        "shell",
        {"commands": ["ls", 'echo "ä"'], "timeout_ms": 1000},
        {
            "type": "shell_call",
            "action": {
                "commands": ["ls", 'echo "ä"'],
                "timeout_ms": 1000,
                "max_output_length": None,
            },
        },
        {"type": "shell_call_output", "output": OUTPUT},
    ),
    "local_shell": (
        {"type": "local_shell"},
        "local_shell",
        {"command": ["ls", "-l"]},
        {"type": "local_shell_call", "action": EXEC},
        {"type": "local_shell_call_output", "output": '{"stdout": "a"}'},
    ),
    "apply_patch: update": (
        {"type": "apply_patch"},
        "apply_patch",
        {"operation": UPDATE},
        {"type": "apply_patch_call", "operation": UPDATE},
        {"type": "apply_patch_call_output", "status": "completed", "output": "done"},
    ),
    "apply_patch: delete": (
        {"type": "apply_patch"},
        "apply_patch",
        {"operation": DELETE},
        {"type": "apply_patch_call", "operation": DELETE},
        {"type": "apply_patch_call_output", "status": "failed"},
    ),
    "computer": (
        {"type": "computer"},
        "computer",
        {"actions": [CLICK, {"type": "screenshot"}]},
        {
            "type": "computer_call",
            "actions": [CLICK, {"type": "screenshot"}],
            "pending_safety_checks": [],
        },
        {"type": "computer_call_output", "output": SHOT},
    ),
    "computer_use_preview": (
        PREVIEW,
        "computer_use_preview",
        {"action": CLICK},
        {"type": "computer_call", "action": CLICK, "pending_safety_checks": []},
        {"type": "computer_call_output", "output": SHOT},
    ),
    "tool_search": (
        {"type": "tool_search", "execution": "client"},
        "tool_search",
        {"query": "mail"},
        {"type": "tool_search_call", "arguments": {"query": "mail"}, "execution": "client"},
        {"type": "tool_search_output", "execution": "client", "tools": []},
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def answer_to(call: Json, output: Json) -> Json:
    key = "id" if output["type"] == "local_shell_call_output" else "call_id"
    return {**output, key: call["call_id"]}


def test_a_call_is_an_item_of_its_own_type_and_its_output_is_answered(
    http: httpx.Client, model: str, script: Any, kind: Any
) -> None:
    tool, name, arguments, fields, output = kind
    asked = script({"call": name, "args": arguments}, {"say": "done"})
    first = create(http, model=model, input=asked, tools=[tool])
    [call] = first["output"]
    assert first["status"] == call["status"] == "completed"
    assert fields.items() <= call.items()
    assert call["id"] != call["call_id"]
    answer = answer_to(call, output)
    chained = create(
        http, model=model, input=[answer], tools=[tool], previous_response_id=first["id"]
    )
    assert chained["output"][-1]["content"][0]["text"] == "done"
    replayed = create(
        http,
        model=model,
        input=[{"role": "user", "content": asked}, call, answer],
        tools=[tool],
        store=False,
    )
    assert replayed["output"][-1]["content"][0]["text"] == "done"
    assert replayed["usage"]["input_tokens"] == chained["usage"]["input_tokens"]


def test_the_official_client_reads_the_stream(
    server: Any, model: str, script: Any, kind: Any
) -> None:
    tool, name, arguments, fields, output = kind
    asked = script([{"say": "First:"}, {"call": name, "args": arguments}], {"say": "done"})
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=15) as client:
        with client.responses.stream(model=model, input=asked, tools=[tool]) as stream:
            events = [event.type for event in stream]
            final = stream.get_final_response()
        call = final.output[-1]
        assert fields.items() <= call.to_dict(mode="json").items()
        Response.model_validate(final.to_dict(mode="json"))
        dumped: Any = [item.model_dump() for item in final.output]
        second = client.responses.create(
            model=model,
            input=[
                {"role": "user", "content": asked},
                *dumped,
                answer_to(dumped[-1], output),
            ],
            tools=[tool],
        )
    assert second.output_text == "done"
    assert events.count("response.output_item.added") == 2
    assert not any("function_call" in event for event in events)


def test_every_event_fits_the_type_that_the_official_client_declares(
    http: httpx.Client, model: str, script: Any, frames: Any, kind: Any
) -> None:
    tool, name, arguments, _, _ = kind
    asked = script({"call": name, "args": arguments})
    body = {"model": model, "input": asked, "tools": [tool], "stream": True}
    for event in frames(http.post("/responses", json=body).text):
        EVENT.validate_python(event)


def test_the_commands_of_a_shell_call_stream_while_they_are_written(
    http: httpx.Client, model: str, script: Any, frames: Any
) -> None:
    commands = ["ls -l /tmp", "", 'grep "\\n" ä😀 | wc']
    part = {"call": "shell", "args": {"commands": commands}}
    body = {"model": model, "input": script(part), "tools": [{"type": "shell"}], "stream": True}
    events = frames(http.post("/responses", json=body).text)
    written = ["", "", ""]
    for event in events:
        if event["type"] == "response.shell_call_command.delta":
            written[event["command_index"]] += event["delta"]
    done = [e["command"] for e in events if e["type"] == "response.shell_call_command.done"]
    assert written == done == commands
    deltas = [e for e in events if e["type"] == "response.shell_call_command.delta"]
    assert len(deltas) > len(commands)


@pytest.mark.parametrize(
    "arguments",
    ['{"operation": {"type": "update_file", "pa', '"just text"', '{"patch": "x"}', "nonsense"],
)
def test_arguments_that_do_not_fit_are_a_plain_function_call_with_all_of_them(
    http: httpx.Client, model: str, script: Any, arguments: str
) -> None:
    asked = script({"call": "apply_patch", "args": arguments}, {"say": "sorry"})
    tools = [{"type": "apply_patch"}]
    first = create(http, model=model, input=asked, tools=tools)
    call = first["output"][0]
    assert (call["type"], call["name"]) == ("function_call", "apply_patch")
    assert arguments.strip('"') in call["arguments"]
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "no"}
    second = create(
        http, model=model, input=[answer], tools=tools, previous_response_id=first["id"]
    )
    assert second["output"][-1]["content"][0]["text"] == "sorry"


@pytest.mark.parametrize(
    ("name", "expected"), [("shell", "shell_call"), ("apply_patch", "function_call")]
)
def test_a_call_that_is_cut_is_incomplete(
    http: httpx.Client, model: str, script: Any, name: str, expected: str
) -> None:
    arguments = {
        "shell": {"commands": ["echo " + "word " * 50]},
        "apply_patch": {"operation": {**UPDATE, "diff": "word " * 50}},
    }[name]
    asked = script({"call": name, "args": arguments})
    cut = create(http, model=model, input=asked, tools=[{"type": name}], max_output_tokens=40)
    call = cut["output"][-1]
    assert (cut["status"], call["type"], call["status"]) == ("incomplete", expected, "incomplete")
    went_on = create(
        http, model=model, input="Go on", tools=[{"type": name}], previous_response_id=cut["id"]
    )
    assert went_on["status"] == "completed"


@pytest.mark.parametrize("name", ["shell", "local_shell", "apply_patch", "computer"])
@pytest.mark.parametrize("form", ["forced", "allowed"])
def test_a_typed_tool_is_called_only_if_it_is_forced(
    http: httpx.Client, model: str, name: str, form: str
) -> None:
    tools = [{"type": name}]
    choice: Any = {"type": name}
    if form == "allowed":
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": name}]}
    forced = create(http, model=model, input="hi", tools=tools, tool_choice=choice)
    assert forced["output"][-1]["type"] == f"{name}_call"
    free = create(http, model=model, input="hi", tools=tools)
    assert free["output"][-1]["type"] == "message"


def test_a_function_beside_a_typed_tool_of_its_name_is_told_apart(
    http: httpx.Client, model: str, script: Any
) -> None:
    tools = [{"type": "function", "name": "shell"}, {"type": "shell"}]
    calls = [
        {"call": "shell", "args": {"x": 1}},
        {"call": "shell_tool", "args": {"commands": ["ls"]}},
    ]
    output = create(http, model=model, input=script(calls), tools=tools)["output"]
    assert [item["type"] for item in output] == ["function_call", "shell_call"]


def test_a_long_name_of_a_namespace_comes_back_as_the_client_wrote_it(
    http: httpx.Client, model: str
) -> None:
    name = "find_" + "x" * 100
    tool = {
        "type": "namespace",
        "name": "crm",
        "description": "d",
        "tools": [{"type": "function", "name": name}],
    }
    call = create(http, model=model, input="hi", tools=[tool])["output"][-1]
    assert (call["namespace"], call["name"]) == ("crm", name)
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "found"}
    again = [{"role": "user", "content": "hi"}, call, answer]
    assert create(http, model=model, input=again, tools=[tool])["status"] == "completed"


def test_tools_of_agents_that_this_server_cannot_run_are_named_as_ignored(
    http: httpx.Client, model: str
) -> None:
    tools = [{"type": "web_search"}, {"type": "shell"}, {"type": "image_generation"}]
    answer = http.post("/responses", json={"model": model, "input": "hi", "tools": tools})
    assert answer.status_code == 200
    assert answer.headers["x-antiphon-ignored"] == "tools[0], tools[2]"
    assert [tool["type"] for tool in answer.json()["tools"]] == [tool["type"] for tool in tools]
    forced = {"model": model, "input": "hi", "tools": tools, "tool_choice": {"type": "web_search"}}
    refusal = http.post("/responses", json=forced)
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "tool_choice")


def test_an_output_that_answers_no_call_is_refused(http: httpx.Client, model: str) -> None:
    answer = {"type": "tool_search_output", "call_id": "call_x", "tools": []}
    refusal = http.post("/responses", json={"model": model, "input": [answer]})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "input")


def test_a_search_without_its_output_is_refused(http: httpx.Client, model: str) -> None:
    call = {"type": "tool_search_call", "call_id": "call_x", "arguments": {}}
    refusal = http.post("/responses", json={"model": model, "input": [call]})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "input")
