"""The code interpreter over HTTP: the model's code is run, then it goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, frames, script, text_of

pytestmark = pytest.mark.slow

Json = dict[str, Any]

TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = "code_interpreter_call.outputs"
TIMEOUT_S = 2.5


@pytest.fixture(scope="module")
def interpreting_server(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    given = {"code_interpreter": True, "code.timeout_s": TIMEOUT_S, "code.memory_mb": 1024}
    with serve_from(tmp_path_factory.mktemp("code"), **given) as served:
        yield served


@pytest.fixture
def interpreting(interpreting_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=interpreting_server.api, timeout=30) as client:
        yield client


def run(client: httpx.Client, model: str, *turns: Any, **fields: Any) -> Json:
    body = {"tools": [TOOL], "include": [OUTPUTS], **fields}
    return create(client, model=model, input=script(*turns), **body)


def calls_in(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "code_interpreter_call"]


def logs(response: Json) -> list[str]:
    return [output["logs"] for call in calls_in(response) for output in call["outputs"]]


def test_code_is_run_and_the_model_goes_on(interpreting: httpx.Client, model: str) -> None:
    response = run(interpreting, model, {"python": "print(6 * 7)"}, {"say": "42 it is"})
    call, message = response["output"]
    assert call.pop("id").startswith("ci_")
    assert call.pop("container_id").startswith("cntr_")
    assert call == {
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "print(6 * 7)",
        "outputs": [{"type": "logs", "logs": "42\n"}],
    }
    assert message["content"][0]["text"] == "42 it is"


def test_a_stream_tells_each_step(interpreting: httpx.Client, model: str) -> None:
    asked = script({"python": "x = 'a \"word\"'\nprint(x)"}, {"say": "ok"})
    body = {"model": model, "input": asked, "tools": [TOOL], "stream": True, "include": [OUTPUTS]}
    events = frames(interpreting.post("/responses", json=body).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    mine = [event for event in events if "code_interpreter" in event["type"]]
    kinds = [event["type"].removeprefix("response.code_interpreter_call") for event in mine]
    deltas = [event["delta"] for event in mine if event["type"].endswith("delta")]
    assert kinds == [
        ".in_progress",
        *["_code.delta"] * len(deltas),
        "_code.done",
        ".interpreting",
        ".completed",
    ]
    assert len(deltas) > 1
    assert "".join(deltas) == "x = 'a \"word\"'\nprint(x)"
    added = next(event["item"] for event in events if event["type"].endswith("item.added"))
    assert (added["status"], added["code"], added["outputs"]) == ("in_progress", "", None)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert done[0]["outputs"] == [{"type": "logs", "logs": 'a "word"\n'}]


def test_streamed_or_not_the_items_are_the_same(interpreting: httpx.Client, model: str) -> None:
    turns = [{"think": "Count."}, {"python": "print(1)\n1 / 0"}], {"say": "It failed."}
    plain = run(interpreting, model, *turns)
    body = {"model": model, "input": script(*turns), "tools": [TOOL], "include": [OUTPUTS]}
    events = frames(interpreting.post("/responses", json={**body, "stream": True}).text)

    def shown(output: list[Json]) -> list[Json]:
        passing = ("id", "container_id", "encrypted_content")
        return [{key: item[key] for key in item if key not in passing} for item in output]

    assert shown(events[-1]["response"]["output"]) == shown(plain["output"])


def test_the_next_call_has_the_variables(interpreting: httpx.Client, model: str) -> None:
    turns = {"python": "x = 41"}, {"python": "x + 1"}, {"say": "ok"}
    response = run(interpreting, model, *turns)
    assert logs(response) == ["", "42\n"]
    assert len({call["container_id"] for call in calls_in(response)}) == 1


def test_calls_of_one_turn_run_in_their_order(interpreting: httpx.Client) -> None:
    turn = [{"python": "import time; time.sleep(0.1); x = 1"}, {"python": "x += 1; print(x)"}]
    response = run(interpreting, "scripted-chat", turn, {"say": "ok"})
    assert logs(response) == ["", "2\n"]


def test_the_next_response_goes_on_in_the_container(interpreting: httpx.Client, model: str) -> None:
    first = run(interpreting, model, {"python": "kept = 7"}, {"say": "ok"})
    second = run(
        interpreting, model, {"python": "kept"}, {"say": "ok"}, previous_response_id=first["id"]
    )
    assert logs(second) == ["7\n"]
    container = calls_in(first)[0]["container_id"]
    named = [{"type": "code_interpreter", "container": container}]
    assert logs(run(interpreting, model, {"python": "kept"}, {"say": "ok"}, tools=named)) == ["7\n"]
    other = run(interpreting, model, {"python": "kept"}, {"say": "ok"})
    assert "NameError" in logs(other)[0]


def test_the_model_is_told_once_that_its_container_is_gone(
    interpreting: httpx.Client, model: str
) -> None:
    first = run(interpreting, model, {"python": "kept = 7"}, {"say": "ok"})
    container = calls_in(first)[0]["container_id"]
    assert interpreting.delete(f"/containers/{container}").status_code == 200
    turns = {"python": "print(1)"}, {"python": "print(2)"}, {"say": "ok"}
    second = run(interpreting, model, *turns, previous_response_id=first["id"])
    gone = "The container of the earlier calls is gone: its variables and files are lost."
    assert logs(second) == [f"{gone}\n1\n", "2\n"]
    third = run(interpreting, model, *turns, previous_response_id=second["id"])
    assert logs(third) == ["1\n", "2\n"]


def test_an_error_is_data_for_the_model(interpreting: httpx.Client, model: str) -> None:
    response = run(interpreting, model, {"python": "1 / 0"}, {"say": "It failed."})
    assert calls_in(response)[0]["status"] == "completed"
    assert logs(response)[0].endswith("ZeroDivisionError: division by zero\n")
    assert (response["status"], text_of(response)) == ("completed", "It failed.")


def test_code_without_end_is_stopped(interpreting: httpx.Client, model: str) -> None:
    response = run(interpreting, model, {"python": "while True: pass"}, {"say": "Too long."})
    assert logs(response)[0].endswith(f"The code was stopped after {TIMEOUT_S:g} seconds.")
    assert response["status"] == "completed"


def test_code_that_was_cut_is_not_run(interpreting: httpx.Client, model: str) -> None:
    turn = [{"python": "print('never')", "finish": "length"}]
    response = run(interpreting, model, turn)
    [call] = response["output"]
    assert response["status"] == "incomplete"
    assert (call["status"], call["outputs"]) == ("incomplete", None)


def test_pictures_are_data_urls(interpreting: httpx.Client, model: str) -> None:
    code = "display(b'\\x89PNG\\r\\n\\x1a\\n')"
    response = run(interpreting, model, {"python": code}, {"say": "See."})
    url = "data:image/png;base64,iVBORw0KGgo="
    assert calls_in(response)[0]["outputs"] == [{"type": "image", "url": url}]


def test_outputs_are_shown_to_clients_that_include_them(
    interpreting: httpx.Client, model: str
) -> None:
    response = run(interpreting, model, {"python": "1"}, {"say": "ok"}, include=[])
    assert calls_in(response)[0]["outputs"] is None
    read = interpreting.get(f"/responses/{response['id']}", params={"include[]": OUTPUTS}).json()
    assert logs(read) == ["1\n"]


def test_calls_beyond_max_tool_calls_are_not_run(interpreting: httpx.Client, model: str) -> None:
    turns = {"python": "1"}, {"python": "2"}, {"say": "ok"}
    response = run(interpreting, model, *turns, max_tool_calls=1)
    assert [call["status"] for call in calls_in(response)] == ["completed", "failed"]
    assert "max_tool_calls" in logs(response)[1]


def test_a_client_may_send_the_items_back(interpreting: httpx.Client, model: str) -> None:
    first = run(interpreting, model, {"python": "print(40 + 2)"}, {"say": "ok"}, store=False)
    asked = [*first["output"], {"role": "user", "content": script({"say": "fine"})}]
    second = create(interpreting, model=model, input=asked, tools=[TOOL])
    assert text_of(second) == "fine"


def test_files_are_there(interpreting: httpx.Client, model: str) -> None:
    file = interpreting.post(
        "/files", files={"file": ("numbers.txt", b"1 2 3")}, data={"purpose": "user_data"}
    ).json()
    container = {"type": "auto", "file_ids": [file["id"]]}
    response = run(
        interpreting,
        model,
        {"python": "open('/mnt/data/numbers.txt').read()"},
        {"say": "ok"},
        tools=[{"type": "code_interpreter", "container": container}],
    )
    assert logs(response) == ["'1 2 3'\n"]


def test_it_can_be_forced(interpreting: httpx.Client, model: str) -> None:
    choice = {"type": "code_interpreter"}
    response = create(
        interpreting,
        model=model,
        input="Compute.",
        tools=[TOOL],
        tool_choice=choice,
        include=[OUTPUTS],
    )
    assert logs(response) == ["1\n"]


def test_a_client_may_have_a_function_of_that_name(interpreting: httpx.Client, model: str) -> None:
    function = {"type": "function", "name": "python", "parameters": {"type": "object"}}
    tools = [TOOL, function]
    called = run(interpreting, model, {"call": "python", "args": {"a": 1}}, tools=tools)
    assert [item["type"] for item in called["output"]] == ["function_call"]
    ran = run(interpreting, model, {"python": "1 + 1"}, {"say": "ok"}, tools=tools)
    assert logs(ran) == ["2\n"]


REFUSED = {
    "unknown": ("cntr_none", "container"),
    "large": ({"type": "auto", "memory_limit": "4g"}, "container.memory_limit"),
    "network": (
        {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["a.org"]}},
        "container.network_policy",
    ),
    "file": ({"type": "auto", "file_ids": ["file-none"]}, "container.file_ids[0]"),
    "kind": ({"type": "other"}, "container.type"),
}


@pytest.mark.parametrize(("container", "param"), REFUSED.values(), ids=REFUSED)
def test_containers_that_cannot_be_had_are_refused(
    interpreting: httpx.Client, container: Any, param: str
) -> None:
    tool = {"type": "code_interpreter", "container": container}
    answer = interpreting.post(
        "/responses", json={"model": "scripted-chat", "input": "Hi", "tools": [tool]}
    )
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == f"tools[0].{param}"


def test_without_the_setting_it_is_named_as_ignored(http: httpx.Client, model: str) -> None:
    answer = http.post("/responses", json={"model": model, "input": "Hi", "tools": [TOOL]})
    assert answer.status_code == 200
    assert "tools[0]" in answer.headers["x-antiphon-ignored"]
    choice = {"type": "code_interpreter"}
    forced = {"model": model, "input": "Hi", "tools": [TOOL], "tool_choice": choice}
    refused = http.post("/responses", json=forced)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"


def test_the_official_client_accumulates_it(interpreting_server: Any, model: str) -> None:
    asked = script({"python": "print(1)"}, {"say": "ok"})
    with (
        OpenAI(base_url=interpreting_server.api, api_key="none") as client,
        client.responses.stream(
            model=model, input=asked, tools=[TOOL], include=[OUTPUTS]
        ) as stream,
    ):
        call = stream.get_final_response().output[0]
    assert call.type == "code_interpreter_call"
    assert json.loads(call.model_dump_json())["outputs"] == [{"type": "logs", "logs": "1\n"}]
