"""The shell over HTTP: commands run in a container, their output streams."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, frames, script, text_of

pytestmark = pytest.mark.slow

Json = dict[str, Any]

TOOL = {"type": "shell", "environment": {"type": "container_auto"}}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = "code_interpreter_call.outputs"


def shell(*commands: str, **action: Any) -> Json:
    return {"call": "shell", "args": {"commands": list(commands), **action}}


def run(client: httpx.Client, model: str, *turns: Any, **fields: Any) -> Json:
    body = {"tools": [TOOL], **fields}
    return create(client, model=model, input=script(*turns), **body)


def outputs(response: Json) -> list[Json]:
    """Return what all commands of a response have put out."""
    items = [item for item in response["output"] if item["type"] == "shell_call_output"]
    return [output for item in items for output in item["output"]]


def test_commands_run_and_the_model_goes_on(containers: httpx.Client, model: str) -> None:
    response = run(containers, model, shell("echo hi; echo no >&2; exit 3"), {"say": "ok"})
    call, output, message = response["output"]
    assert call.pop("id").startswith("sh_")
    assert output.pop("id").startswith("sho_")
    assert call["environment"].pop("container_id").startswith("cntr_")
    assert call["call_id"] == output["call_id"]
    assert call == {
        "type": "shell_call",
        "status": "completed",
        "call_id": call["call_id"],
        "action": {
            "commands": ["echo hi; echo no >&2; exit 3"],
            "timeout_ms": None,
            "max_output_length": None,
        },
        "environment": {"type": "container_reference"},
    }
    assert output == {
        "type": "shell_call_output",
        "status": "completed",
        "call_id": call["call_id"],
        "max_output_length": None,
        "output": [
            {"stdout": "hi\n", "stderr": "no\n", "outcome": {"type": "exit", "exit_code": 3}}
        ],
    }
    assert message["content"][0]["text"] == "ok"


def test_a_stream_tells_of_commands_and_then_of_their_output(
    containers: httpx.Client, model: str
) -> None:
    asked = script(shell("echo one; sleep 0.2; echo two", "echo three"), {"say": "ok"})
    body = {"model": model, "input": asked, "tools": [TOOL], "stream": True}
    events = frames(containers.post("/responses", json=body).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    order = [
        kind
        for position, kind in enumerate(kinds)
        if ("shell" in kind or "output_item" in kind) and kinds[position - 1] != kind
    ]
    assert order == [
        "output_item.added",
        *["shell_call_command.added", "shell_call_command.delta", "shell_call_command.done"] * 2,
        "output_item.done",
        "output_item.added",
        *["shell_call_output_content.delta", "shell_call_output_content.done"] * 2,
        "output_item.done",
        "output_item.added",
        "output_item.done",
    ]
    deltas = [
        (event["command_index"], event["delta"])
        for event in events
        if event["type"] == "response.shell_call_output_content.delta"
    ]
    said = ((0, "one\n"), (0, "two\n"), (1, "three\n"))
    assert deltas == [(index, {"stdout": text}) for index, text in said]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_streamed_waited_for_or_in_background_the_items_are_the_same(
    containers: httpx.Client, model: str, eventually: Any
) -> None:
    turns = [{"think": "Look."}, shell("echo a", "false")], [shell("echo b")], {"say": "Done."}
    body = {"model": model, "input": script(*turns), "tools": [TOOL]}
    plain = create(containers, **body)
    events = frames(containers.post("/responses", json={**body, "stream": True}).text)
    begun = create(containers, **body, background=True)

    def ended() -> Json:
        found: Json = containers.get(f"/responses/{begun['id']}").json()
        return found

    eventually(lambda: ended()["status"] == "completed")

    def shown(output: list[Json]) -> list[Json]:
        passing = ("id", "call_id", "environment", "encrypted_content")
        return [{key: item[key] for key in item if key not in passing} for item in output]

    assert shown(events[-1]["response"]["output"]) == shown(plain["output"])
    assert shown(ended()["output"]) == shown(plain["output"])


def test_code_and_commands_share_the_container(containers: httpx.Client, model: str) -> None:
    turns = (
        {"python": "open('a.txt', 'w').write('from code')"},
        shell("cat a.txt; echo more >> a.txt"),
        {"python": "print(open('a.txt').read())"},
        {"say": "ok"},
    )
    response = run(containers, model, *turns, tools=[TOOL, PYTHON], include=[OUTPUTS])
    code, call, output, last, _ = response["output"]
    assert output["output"][0]["stdout"] == "from code"
    assert last["outputs"] == [{"type": "logs", "logs": "from codemore\n\n"}]
    assert code["container_id"] == call["environment"]["container_id"] == last["container_id"]


def test_calls_of_one_turn_come_in_their_order(containers: httpx.Client) -> None:
    turn = [shell("sleep 0.1; echo 1 > n"), shell("cat n")]
    response = run(containers, "scripted-chat", turn, {"say": "ok"})
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["shell_call", "shell_call_output"] * 2 + ["message"]
    assert [output["stdout"] for output in outputs(response)] == ["", "1\n"]


def test_the_next_response_goes_on_in_the_container(containers: httpx.Client, model: str) -> None:
    first = run(containers, model, shell("echo kept > f"), {"say": "ok"})
    container = first["output"][0]["environment"]["container_id"]
    again = (shell("cat f"), {"say": "ok"})
    second = run(containers, model, *again, previous_response_id=first["id"])
    assert outputs(second)[0]["stdout"] == "kept\n"
    environment = {"type": "container_reference", "container_id": container}
    named = {"type": "shell", "environment": environment}
    assert outputs(run(containers, model, *again, tools=[named]))[0]["stdout"] == "kept\n"
    other = run(containers, model, *again)
    assert "No such file" in outputs(other)[0]["stderr"]


def test_the_model_is_told_once_that_its_container_is_gone(
    containers: httpx.Client, model: str
) -> None:
    first = run(containers, model, shell("echo kept > f"), {"say": "ok"})
    container = first["output"][0]["environment"]["container_id"]
    assert containers.delete(f"/containers/{container}").status_code == 200
    turns = (shell("echo 1", "echo 2"), shell("echo 3"), {"say": "ok"})
    second = run(containers, model, *turns, previous_response_id=first["id"])
    assert [output["stdout"] for output in outputs(second)] == ["1\n", "2\n", "3\n"]
    gone = "The container of the earlier calls is gone: its variables and files are lost.\n"
    assert [output["stderr"] for output in outputs(second)] == [gone, "", ""]


def test_a_client_may_send_the_items_back(containers: httpx.Client, model: str) -> None:
    first = run(containers, model, shell("echo 42"), {"say": "ok"}, store=False)
    asked = [*first["output"], {"role": "user", "content": script({"say": "fine"})}]
    second = create(containers, model=model, input=asked, tools=[TOOL])
    assert text_of(second) == "fine"


def test_items_that_come_back_make_the_prompt_that_was(containers: httpx.Client) -> None:
    """What a model reads of its calls is the same, wherever they were kept."""
    asked = script(shell("echo 42"), {"say": "ok"})
    first = create(containers, model="scripted-chat", input=asked, tools=[TOOL])
    more = {"role": "user", "content": script({"say": "fine"})}
    given = [{"role": "user", "content": asked}, *first["output"], more]
    kept = {"input": [more], "previous_response_id": first["id"]}
    counts = [
        containers.post(
            "/responses/input_tokens", json={"model": "scripted-chat", "tools": [TOOL], **body}
        ).json()["input_tokens"]
        for body in (kept, {"input": given})
    ]
    assert counts[0] == counts[1]


def test_a_command_that_takes_too_long_is_stopped(containers: httpx.Client, model: str) -> None:
    turn = shell("echo first; sleep 60", "echo second", timeout_ms=200)
    response = run(containers, model, turn, {"say": "Too long."})
    assert outputs(response) == [
        {"stdout": "first\n", "stderr": "", "outcome": {"type": "timeout"}},
        {"stdout": "second\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
    ]
    assert response["status"] == "completed"
    assert response["output"][0]["action"]["timeout_ms"] == 200


@pytest.mark.parametrize("timeout_ms", [0, -5, 2**62])
def test_an_invalid_timeout_becomes_the_operators_limit(
    containers: httpx.Client, timeout_ms: int
) -> None:
    turn = shell("echo on", timeout_ms=timeout_ms)
    assert outputs(run(containers, "scripted-chat", turn, {"say": "ok"}))[0]["stdout"] == "on\n"


def test_output_is_cut_at_the_length_that_the_model_requested(
    containers: httpx.Client, model: str
) -> None:
    turn = shell("echo 12345; echo 67890 >&2", "echo 12345", max_output_length=5)
    response = run(containers, model, turn, {"say": "ok"})
    assert [output["stdout"] + output["stderr"] for output in outputs(response)] == ["12345"] * 2
    assert response["output"][1]["max_output_length"] == 5


def test_excessive_output_is_cut_and_marked(containers: httpx.Client) -> None:
    turn = shell("yes | head -c 3000000", "echo on")
    events = frames(
        containers.post(
            "/responses",
            json={
                "model": "scripted-chat",
                "input": script(turn, {"say": "ok"}),
                "tools": [TOOL],
                "stream": True,
            },
        ).text
    )
    flood, after = outputs(events[-1]["response"])
    assert len(flood["stdout"]) <= 1024**2
    assert "more" in flood["stdout"][-100:] + flood["stderr"]
    assert "left out" in after["stderr"]
    said = [
        event["delta"].get("stdout", "")
        for event in events
        if event["type"] == "response.shell_call_output_content.delta"
        and event["command_index"] == 0
    ]
    assert "".join(said) == flood["stdout"]


def test_a_command_that_ends_its_container_is_data_for_the_model(
    containers: httpx.Client, model: str
) -> None:
    response = run(containers, model, shell("kill -9 -1", "echo on"), {"say": "Oh."})
    lost, after = outputs(response)
    assert "was restarted" in lost["stderr"]
    assert after["stdout"] == "on\n"
    assert (response["status"], text_of(response)) == ("completed", "Oh.")


def test_a_call_with_too_many_commands_does_not_run(containers: httpx.Client) -> None:
    turn = shell(*["echo on"] * 33)
    last = outputs(run(containers, "scripted-chat", turn, {"say": "ok"}))[-1]
    assert last["outcome"] == {"type": "exit", "exit_code": 126}
    assert "32 commands" in last["stderr"]


@pytest.mark.parametrize(
    "arguments", [{"commands": []}, {"x": 1}, {"commands": ["ls", 1]}, {"commands": "ls"}]
)
def test_invalid_arguments_are_reported_to_the_model(
    containers: httpx.Client, model: str, arguments: Json
) -> None:
    response = run(containers, model, {"call": "shell", "args": arguments}, {"say": "Sorry."})
    call, output, _ = response["output"]
    assert (call["type"], output["type"]) == ("shell_call", "shell_call_output")
    assert "arguments" in output["output"][0]["stderr"]
    assert text_of(response) == "Sorry."
    asked = {"input": script({"say": "fine"}), "previous_response_id": response["id"]}
    assert text_of(create(containers, model=model, tools=[TOOL], **asked)) == "fine"


def test_a_call_that_was_cut_is_not_run(containers: httpx.Client, model: str) -> None:
    turn = [{**shell("echo never"), "finish": "length"}]
    response = run(containers, model, turn)
    [call] = response["output"]
    assert (response["status"], call["status"]) == ("incomplete", "incomplete")
    asked = {"input": script({"say": "fine"}), "previous_response_id": response["id"]}
    assert text_of(create(containers, model=model, tools=[TOOL], **asked)) == "fine"


def test_calls_beyond_max_tool_calls_are_not_run(containers: httpx.Client, model: str) -> None:
    turns = shell("echo 1"), shell("echo 2"), {"say": "ok"}
    response = run(containers, model, *turns, max_tool_calls=1)
    first, second = outputs(response)
    assert first["stdout"] == "1\n"
    assert "max_tool_calls" in second["stderr"]
    assert response["status"] == "completed"


def test_a_cancelled_command_leaves_a_conversation_that_goes_on(
    containers: httpx.Client, model: str
) -> None:
    body = {"model": model, "input": script(shell("sleep 60"), {"say": "no"}), "tools": [TOOL]}
    streamed = {**body, "background": True, "stream": True}
    response_id = ""
    with containers.stream("POST", "/responses", json=streamed) as answer:
        for line in answer.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
            response_id = event.get("response", {}).get("id") or response_id
            if event.get("item", {}).get("type") == "shell_call_output":
                break
        cancelled = containers.post(f"/responses/{response_id}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert [item["status"] for item in cancelled["output"]] == ["completed", "incomplete"]
    asked = {"input": script({"say": "fine"}), "previous_response_id": response_id}
    assert text_of(create(containers, model=model, tools=[TOOL], **asked)) == "fine"


def test_it_can_be_forced(containers: httpx.Client, model: str) -> None:
    response = create(
        containers, model=model, input="Look.", tools=[TOOL], tool_choice={"type": "shell"}
    )
    assert response["output"][0]["type"] == "shell_call"
    assert len(outputs(response)) == len(response["output"][0]["action"]["commands"])


def test_a_shell_of_the_clients_stays_the_clients(containers: httpx.Client, model: str) -> None:
    for environment in (None, {"type": "local"}):
        tools = [{"type": "shell", "environment": environment}]
        response = run(containers, model, shell("ls"), tools=tools)
        [call] = response["output"]
        assert (call["type"], call["environment"]) == ("shell_call", None)


@pytest.mark.parametrize(
    ("environment", "param"),
    [
        ({"type": "container_reference", "container_id": "cntr_none"}, "container_id"),
        ({"type": "container_reference"}, "container_id"),
        ({"type": "container_auto", "memory_limit": "64g"}, "memory_limit"),
        ({"type": "container_auto", "network_policy": {"type": "allowlist"}}, "network_policy"),
        ({"type": "container_auto", "file_ids": ["file-none"]}, "file_ids[0]"),
        ({"type": "container_auto", "skills": [{"type": "skill_reference"}]}, "skills[0].skill_id"),
        ({"type": "other"}, "type"),
    ],
)
def test_environments_that_cannot_be_had_are_refused(
    containers: httpx.Client, environment: Json, param: str
) -> None:
    tools = [{"type": "shell", "environment": environment}]
    answer = containers.post(
        "/responses", json={"model": "scripted-chat", "input": "Hi", "tools": tools}
    )
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == f"tools[0].environment.{param}"


def test_tools_that_name_two_containers_are_refused(containers: httpx.Client) -> None:
    ids = [containers.post("/containers", json={"name": name}).json()["id"] for name in "ab"]
    tools = [
        {"type": "shell", "environment": {"type": "container_reference", "container_id": ids[0]}},
        {"type": "code_interpreter", "container": ids[1]},
    ]
    answer = containers.post(
        "/responses", json={"model": "scripted-chat", "input": "Hi", "tools": tools}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tools[")
    for each in ids:
        containers.delete(f"/containers/{each}")


def test_without_the_setting_it_is_named_as_ignored(http: httpx.Client, model: str) -> None:
    answer = http.post("/responses", json={"model": model, "input": "Hi", "tools": [TOOL]})
    assert answer.status_code == 200
    assert "tools[0]" in answer.headers["x-antiphon-ignored"]


def test_the_official_client_accumulates_it(container_server: Any, model: str) -> None:
    asked = script(shell("echo hi"), {"say": "ok"})
    with (
        OpenAI(base_url=container_server.api, api_key="none") as client,
        client.responses.stream(model=model, input=asked, tools=[TOOL]) as stream,
    ):
        call, output, _ = stream.get_final_response().output
    assert call.type == "shell_call"
    assert output.type == "shell_call_output"
    assert output.output[0].stdout == "hi\n"


@pytest.mark.usefixtures("container_server")
def test_a_call_that_is_stopped_tells_the_model_why(serve: Any, model: str) -> None:
    given: Json = {
        "code_interpreter": True,
        "shell": True,
        "code.cgroup": "off",
        "tools.call_s": 0.5,
    }
    with serve(**given) as server, httpx.Client(base_url=server.api, timeout=20) as client:
        turn = shell("echo first; sleep 60", "echo never")
        response = run(client, model, turn, {"say": "Oh."})
    [cut] = outputs(response)
    assert cut["outcome"] == {"type": "timeout"}
    assert "more than 0.5 seconds" in cut["stderr"]
    assert [item.get("status") for item in response["output"][1:]] == ["incomplete", "completed"]
    assert (response["status"], text_of(response)) == ("completed", "Oh.")
