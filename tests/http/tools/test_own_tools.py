"""Servers of tools that the operator set up: a request names their label, and says no more."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script, text_of, wait_until
from tests.http.test_mcp import CALLED, types
from tests.support.fake_mcp_server import FakeMcpServer
from tests.support.processes import is_process_alive

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "adapters" / "tool_process.py"
SECRET = "hunter2-hunter2"
CALC: Json = {"type": "mcp", "server_label": "calc"}
ADD: Json = {"mcp": "add", "args": {"a": 2, "b": 40}}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def site() -> Iterator[FakeMcpServer]:
    site = FakeMcpServer()
    yield site
    site.close()


@pytest.fixture(scope="module")
def own(serve_from: Any, folder: Path, site: FakeMcpServer) -> Iterator[httpx.Client]:
    """A client of a server with tools of every kind, which may fetch nothing."""
    config = folder / "antiphon.toml"
    command = json.dumps([sys.executable, str(PROGRAM)])
    config.write_text(f"""
        tool = ["examples.tools:Lengths", "mine=examples.tools:Lengths"]

        [[mcp_servers]]
        label = "calc"
        command = {command}
        env = {{SECRET = "{SECRET}"}}

        [[mcp_servers]]
        label = "frail"
        command = {command}
        env = {{SECRET = "{SECRET}"}}

        [[mcp_servers]]
        label = "hasty"
        timeout_s = 2.5
        command = {command}

        [[mcp_servers]]
        label = "careful"
        command = {command}
        allowed_tools = ["add"]
        require_approval = "always"

        [[mcp_servers]]
        label = "wiki"
        url = "{site.url}"
        headers = {{authorization = "Bearer {SECRET}"}}

        [[mcp_servers]]
        label = "broken"
        command = {json.dumps([sys.executable, str(PROGRAM), "ends"])}
    """)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        with (
            serve_from(folder, config=config, store="sqlite", **{"tools.timeout_s": 30}) as server,
            httpx.Client(base_url=server.api, timeout=60) as client,
        ):
            yield client


# --- what a label is enough for -------------------------------------------------------------------


@pytest.mark.parametrize("label", ["calc", "wiki"])
def test_a_label_is_enough(own: httpx.Client, model: str, label: str) -> None:
    tool = {"type": "mcp", "server_label": label}
    response = create(own, model=model, input=script(ADD, {"say": "42 it is"}), tools=[tool])
    assert types(response["output"]) == CALLED
    assert response["output"][1]["output"] == "42"
    assert text_of(response) == "42 it is"
    assert response["tools"][0]["require_approval"] == "never"


@pytest.mark.parametrize("label", ["lengths", "mine"])
def test_classes_of_the_operators_are_servers_too(
    own: httpx.Client, model: str, label: str
) -> None:
    call = {"mcp": "convert", "args": {"value": 5, "unit": "km", "into": "m"}}
    tool = {"type": "mcp", "server_label": label}
    response = create(own, model=model, input=script(call, {"say": "ok"}), tools=[tool])
    assert types(response["output"]) == CALLED
    assert (response["output"][1]["server_label"], response["output"][1]["output"]) == (
        label,
        "5000 m",
    )


def test_a_stream_tells_the_same_as_of_any_mcp_server(own: httpx.Client, model: str) -> None:
    body = {"model": model, "input": script(ADD, {"say": "a"}), "tools": [CALC], "stream": True}
    events = frames(own.post("/responses", json=body).text)
    kinds = [event["type"] for event in events]
    assert "response.mcp_list_tools.completed" in kinds
    assert "response.mcp_call.completed" in kinds
    assert kinds[-1] == "response.completed"


def test_servers_are_asked_for_their_lists_once_for_many_responses(
    own: httpx.Client, site: FakeMcpServer
) -> None:
    tool = {"type": "mcp", "server_label": "wiki"}
    for _ in range(3):
        response = create(own, model="scripted-chat", input=script({"say": "a"}), tools=[tool])
        assert response["output"][0]["tools"]
    assert len(site.methods("tools/list")) == 1


def test_a_server_that_cannot_be_started_is_a_failed_list(own: httpx.Client, model: str) -> None:
    tool = {"type": "mcp", "server_label": "broken"}
    response = create(own, model=model, input=script({"say": "without"}), tools=[tool])
    assert types(response["output"]) == ["mcp_list_tools", "message"]
    assert "'broken'" in response["output"][0]["error"]


def test_an_unknown_label_is_refused_with_those_that_there_are(own: httpx.Client) -> None:
    tool = {"type": "mcp", "server_label": "nobody"}
    answer = own.post("/responses", json={"model": "scripted-chat", "input": "x", "tools": [tool]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tools[0].server_label")
    assert "'nobody'" in error["message"]
    assert "'wiki'" in error["message"]


# --- terms ----------------------------------------------------------------------------------------


def test_the_operator_can_require_approval_and_limit_the_tools(
    own: httpx.Client, model: str
) -> None:
    tool = {"type": "mcp", "server_label": "careful"}
    response = create(own, model=model, input=script(ADD, {"say": "a"}), tools=[tool])
    listed, request = response["output"]
    assert [each["name"] for each in listed["tools"]] == ["add"]
    assert request["type"] == "mcp_approval_request"


def test_a_request_cannot_waive_the_approval_that_the_operator_requires(
    own: httpx.Client, model: str
) -> None:
    for waived in ("never", {"never": {"tool_names": ["add"]}}):
        tool = {"type": "mcp", "server_label": "careful", "require_approval": waived}
        response = create(own, model=model, input=script(ADD, {"say": "a"}), tools=[tool])
        assert types(response["output"]) == ["mcp_list_tools", "mcp_approval_request"]
        assert response["tools"][0]["require_approval"] == "always"


def test_an_approval_cannot_run_a_tool_that_the_operator_does_not_allow(own: httpx.Client) -> None:
    asked = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "careful",
        "name": "process",
        "arguments": "{}",
    }
    given = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    response = create(
        own,
        model="scripted-chat",
        input=[asked, given],
        tools=[{"type": "mcp", "server_label": "careful"}],
    )
    call = next(item for item in response["output"] if item["type"] == "mcp_call")
    assert (call["status"], call["output"]) == ("failed", None)
    assert "no tool 'process'" in call["error"]["content"]


# --- what no request can do -----------------------------------------------------------------------


@pytest.mark.parametrize("label", ["calc", "wiki", "lengths"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("server_url", "elsewhere"),
        ("authorization", "mine"),
        ("headers", {"x-key": "mine"}),
        ("connector_id", "connector_dropbox"),
    ],
)
def test_no_request_can_set_the_url_of_the_operators_server(
    own: httpx.Client, label: str, field: str, value: Any
) -> None:
    elsewhere = FakeMcpServer()
    try:
        given = elsewhere.url if value == "elsewhere" else value
        tool = {"type": "mcp", "server_label": label, field: given}
        brought = {"type": "additional_tools", "role": "developer", "tools": [tool]}
        for fields, param in (
            ({"tools": [tool], "input": "x"}, f"tools[0].{field}"),
            ({"input": [brought]}, f"input[0].tools[0].{field}"),
        ):
            refused = own.post("/responses", json={"model": "scripted-chat", **fields})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param
        assert elsewhere.asked == []
    finally:
        elsewhere.close()


@pytest.mark.parametrize(
    "url",
    [
        "stdio:touch",
        "stdio://touch",
        "file:///bin/touch",
        "unix:///run/docker.sock",
        "ws://127.0.0.1/",
        "/bin/touch",
        "touch",
        " http://127.0.0.1/",
        "http:127.0.0.1",
    ],
)
def test_an_address_is_one_of_the_web(own: httpx.Client, url: str) -> None:
    tool = {"type": "mcp", "server_label": "theirs", "server_url": url}
    body = {"model": "scripted-chat", "input": "x", "tools": [tool]}
    refused = own.post("/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].server_url")


@pytest.mark.parametrize("label", ["theirs", "calc", "lengths"])
def test_no_request_has_a_command_run(own: httpx.Client, tmp_path: Path, label: str) -> None:
    file = tmp_path / "touched"
    fields: Json = {
        "command": ["touch", str(file)],
        "args": ["touch", str(file)],
        "env": {"PATH": str(tmp_path), "LD_PRELOAD": str(file), "BASH_ENV": str(file)},
        "cwd": str(tmp_path),
        "transport": "stdio",
        "url": f"file://{file}",
    }
    tool = {"type": "mcp", "server_label": label, **fields}
    own_table = [{"label": "theirs", "command": fields["command"]}]
    body = {"model": "scripted-chat", "input": "x", "mcp_servers": own_table, "tools": [tool]}
    answer = own.post("/responses", json=body)
    assert answer.status_code in (200, 400)
    assert not file.exists()


def test_a_models_arguments_never_reach_a_shell(own: httpx.Client, tmp_path: Path) -> None:
    file = tmp_path / "touched"
    evil = f"$(touch {file})`touch {file}`; touch {file}"
    call = {"mcp": "add", "args": {"a": evil, evil: 1}}
    response = create(own, model="scripted-chat", input=script(call, {"say": "a"}), tools=[CALC])
    assert response["output"][1]["status"] == "failed"
    assert not file.exists()


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_server_that_is_killed_in_a_call_fails_that_call_alone(
    own: httpx.Client, model: str
) -> None:
    tools = [{"type": "mcp", "server_label": "frail"}]
    turns = ({"mcp": "process", "args": {}}, {"mcp": "die", "args": {}}, ADD, {"say": "I see"})
    response = create(own, model=model, input=script(*turns), tools=tools)
    process, died, added = response["output"][1:4]
    assert response["status"] == "completed"
    assert (died["status"], "has ended" in died["error"]["message"]) == ("failed", True)
    assert added["output"] == "42"
    again = create(own, model=model, input=script(turns[0], {"say": "a"}), tools=tools)
    assert again["output"][1]["output"] != process["output"]


def test_a_call_that_hangs_ends_in_time_and_the_response_goes_on(own: httpx.Client) -> None:
    tools = [{"type": "mcp", "server_label": "hasty"}]

    def is_begun() -> bool:
        begun = create(own, model="scripted-chat", input=script({"say": "a"}), tools=tools)
        return bool(begun["output"][0]["tools"])

    wait_until(is_begun)  # so the limit is the call's alone
    turns = ({"mcp": "hang", "args": {}}, {"say": "too slow"})
    response = create(own, model="scripted-chat", input=script(*turns), tools=tools)
    call, message = response["output"][1:]
    assert (call["status"], "2.5 seconds" in call["error"]["message"]) == ("failed", True)
    assert (response["status"], message["type"]) == ("completed", "message")


def test_a_call_that_waits_is_stopped_with_its_response(own: httpx.Client) -> None:
    asked = script({"mcp": "process", "args": {}}, {"mcp": "wait", "args": {}}, {"say": "a"})
    begun = create(own, model="scripted-chat", input=asked, tools=[CALC], background=True)
    path = f"/responses/{begun['id']}"

    def calls() -> list[Json]:
        output = own.get(path).json()["output"]
        return [item for item in output if item["type"] == "mcp_call"]

    body = {"model": "scripted-chat", "stream": True, "tools": [CALC], "input": asked}
    with own.stream("POST", "/responses", json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:") and '"response.mcp_call_arguments.done"' in line:
                break
    assert own.post(f"{path}/cancel").json()["status"] == "cancelled"
    wait_until(lambda: own.get(path).json()["status"] == "cancelled")
    after = create(own, model="scripted-chat", input=script(ADD, {"say": "a"}), tools=[CALC])
    assert after["output"][1]["output"] == "42"


# --- secrets --------------------------------------------------------------------------------------


def test_secrets_go_to_their_server_and_nowhere_else(
    own: httpx.Client,
    site: FakeMcpServer,
    folder: Path,
    model: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    wiki = {"type": "mcp", "server_label": "wiki"}
    turns: list[Json] = [{**ADD, "server": "wiki"}, {"mcp": "confess", "args": {}}]
    shown: list[str] = []
    for stream, last in ((False, "add"), (True, "die")):
        asked = script(*turns, {"mcp": last, "args": {}}, {"say": "ok"})
        body = {"model": model, "input": asked, "tools": [CALC, wiki], "stream": stream}
        shown.append(own.post("/responses", json=body).text)
    assert all("mcp_call" in text for text in shown)
    assert all(SECRET not in text for text in shown)
    assert site.methods("tools/call")
    assert {headers.get("authorization") for _, _, headers in site.asked} == {f"Bearer {SECRET}"}
    assert SECRET not in caplog.text
    kept = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".toml"]
    content = b"".join(path.read_bytes() for path in kept)
    assert b"server_label" in content
    assert SECRET.encode() not in content


# --- the end --------------------------------------------------------------------------------------


def test_stopping_the_server_stops_its_tools(serve_from: Any, tmp_path: Path) -> None:
    config = tmp_path / "antiphon.toml"
    command = json.dumps([sys.executable, str(PROGRAM)])
    config.write_text(f'[[mcp_servers]]\nlabel = "calc"\ncommand = {command}\n')
    asked = script(*({"mcp": name, "args": {}} for name in ("process", "breed")), {"say": "a"})
    with (
        serve_from(tmp_path, config=config) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        response = create(client, model="scripted-chat", input=asked, tools=[CALC])
    process, bred = (int(item["output"]) for item in response["output"][1:3])
    wait_until(lambda: not (is_process_alive(process) or is_process_alive(bred)))
