"""MCP servers that requests name: listed, called, approved of."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import TOOLS, FakeMcpServer

from .conftest import MODELS, create, frames, script, wait_until

Json = dict[str, Any]


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    site = FakeMcpServer()
    yield site
    site.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp")


@pytest.fixture(scope="module")
def calling(serve_from: Any, folder: Path) -> Iterator[httpx.Client]:
    """A client of a server that may reach this machine."""
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    with (
        serve_from(folder, store="sqlite", **allowed, **{"tools.timeout_s": 15}) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


def server_tool(site: FakeMcpServer, **fields: Any) -> Json:
    return {
        "type": "mcp",
        "server_label": "calc",
        "server_url": site.url,
        "require_approval": "never",
        **fields,
    }


def types(output: list[Json]) -> list[str]:
    return [item["type"] for item in output]


ADD = {"mcp": "add", "args": {"a": 2, "b": 40}}
CALLED = ["mcp_list_tools", "mcp_call", "message"]


def test_a_call_is_run_and_the_model_goes_on(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    asked = script(ADD, {"say": "42 it is"})
    response = create(calling, model=model, input=asked, tools=[server_tool(site)])
    listed, call, message = response["output"]
    assert types(response["output"]) == CALLED
    assert [tool["name"] for tool in listed["tools"]] == ["add", "look", "boom"]
    assert listed["tools"][0]["input_schema"] == TOOLS[0]["inputSchema"]
    assert (call["status"], call["output"], call["error"]) == ("completed", "42", None)
    assert (call["server_label"], call["name"]) == ("calc", "add")
    assert json.loads(call["arguments"]) == {"a": 2, "b": 40}
    assert message["content"][0]["text"] == "42 it is"
    assert [params["name"] for params in site.methods("tools/call")] == ["add"]


def test_a_stream_tells_each_step_of_a_call(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    asked = script(ADD, {"say": "ok"})
    body = {"model": model, "input": asked, "tools": [server_tool(site)], "stream": True}
    events = frames(calling.post("/responses", json=body).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events if "mcp" in event["type"]]
    deltas = kinds.count("response.mcp_call_arguments.delta")
    assert kinds == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        *["response.mcp_call_arguments.delta"] * deltas,
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert deltas > 1
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert types(done) == CALLED


def test_a_background_response_calls_too(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    asked = script(ADD, {"say": "ok"})
    tools = [server_tool(site)]
    begun = create(calling, model=model, input=asked, tools=tools, background=True)
    path = f"/responses/{begun['id']}"
    wait_until(lambda: calling.get(path).json()["status"] == "completed")
    assert types(calling.get(path).json()["output"]) == CALLED


def test_calls_of_one_turn_run_side_by_side_and_come_in_order(
    calling: httpx.Client, site: FakeMcpServer
) -> None:
    site.meeting = threading.Barrier(2)
    turn = [ADD, {"mcp": "add", "args": {"a": 1, "b": 1}}]
    response = create(
        calling,
        model="scripted-chat",
        input=script(turn, {"say": "both"}),
        tools=[server_tool(site)],
    )
    assert types(response["output"]) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    assert [item["output"] for item in response["output"][1:3]] == ["42", "2"]


def test_a_chain_lists_a_server_once(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    tools = [server_tool(site)]
    first = create(calling, model=model, input=script(ADD, {"say": "a"}), tools=tools)
    second = create(
        calling,
        model=model,
        input=script(ADD, {"say": "b"}),
        tools=tools,
        previous_response_id=first["id"],
    )
    assert types(second["output"]) == ["mcp_call", "message"]
    assert len(site.methods("tools/list")) == 1


def test_a_tool_that_fails_is_something_to_tell_the_model(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    asked = script({"mcp": "boom", "args": {}}, {"say": "I see"})
    response = create(calling, model=model, input=asked, tools=[server_tool(site)])
    assert types(response["output"]) == CALLED
    call = response["output"][1]
    assert (call["status"], call["output"]) == ("failed", None)
    assert call["error"]["type"] == "mcp_tool_execution_error"
    assert call["error"]["content"][0]["text"] == "no such page"


def test_a_server_that_refuses_is_a_failed_list(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    site.status = 401
    response = create(
        calling, model=model, input=script({"say": "without"}), tools=[server_tool(site)]
    )
    assert types(response["output"]) == ["mcp_list_tools", "message"]
    assert "401" in response["output"][0]["error"]
    assert "'calc'" in response["output"][0]["error"]


def test_only_allowed_tools_are_offered(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    def echo(**fields: Any) -> list[str]:
        chosen = {"type": "mcp", "server_label": "calc"}
        response = create(
            calling, model=model, input="x", tools=[server_tool(site, **fields)], tool_choice=chosen
        )
        return [item["name"] for item in response["output"] if item["type"] == "mcp_call"]

    assert echo(allowed_tools=["boom"]) == ["boom"]
    assert echo(allowed_tools={"read_only": True}) == ["look"]
    assert echo(allowed_tools={"tool_names": ["add"]}) == ["add"]
    assert echo(allowed_tools=[]) == []


def test_a_forced_call_is_forced_once(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    chosen = {"type": "mcp", "server_label": "calc", "name": "look"}
    response = create(
        calling, model=model, input="Look.", tools=[server_tool(site)], tool_choice=chosen
    )
    assert types(response["output"]) == CALLED
    assert response["output"][1]["name"] == "look"


def test_max_tool_calls_limits_the_calls_that_run(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    response = create(
        calling,
        model=model,
        input=script(ADD, ADD, {"say": "enough"}),
        tools=[server_tool(site)],
        max_tool_calls=1,
    )
    first, second = response["output"][1:3]
    assert (first["output"], second["status"]) == ("42", "failed")
    assert "max_tool_calls" in second["error"]["content"]
    assert len(site.methods("tools/call")) == 1


def test_a_clients_call_ends_the_response_after_the_servers_are_done(
    calling: httpx.Client, site: FakeMcpServer
) -> None:
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
    response = create(
        calling,
        model="scripted-chat",
        input=script([{"call": "mine", "args": {}}, ADD], {"say": "no"}),
        tools=[mine, server_tool(site)],
    )
    assert types(response["output"]) == ["mcp_list_tools", "function_call", "mcp_call"]
    assert response["output"][2]["output"] == "42"


# --- approval -------------------------------------------------------------------------------------


@pytest.fixture
def asked_for(calling: httpx.Client, site: FakeMcpServer, model: str) -> Json:
    """A response that asks the client to approve of a call."""
    tools = [server_tool(site, require_approval="always")]
    return create(calling, model=model, input=script(ADD, {"say": "42"}), tools=tools)


def answer(calling: httpx.Client, site: FakeMcpServer, before: Json, **fields: Any) -> Json:
    request = before["output"][-1]
    given = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": True,
        **fields,
    }
    return create(
        calling,
        model=before["model"],
        input=[given],
        tools=[server_tool(site, require_approval="always")],
        previous_response_id=before["id"],
    )


def test_a_call_waits_for_approval(site: FakeMcpServer, asked_for: Json) -> None:
    assert types(asked_for["output"]) == ["mcp_list_tools", "mcp_approval_request"]
    assert asked_for["status"] == "completed"
    request = asked_for["output"][1]
    assert (request["server_label"], request["name"]) == ("calc", "add")
    assert json.loads(request["arguments"]) == {"a": 2, "b": 40}
    assert site.methods("tools/call") == []


def test_an_approved_call_is_run_first(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json
) -> None:
    response = answer(calling, site, asked_for)
    assert types(response["output"]) == ["mcp_call", "message"]
    call, message = response["output"]
    assert call["approval_request_id"] == asked_for["output"][1]["id"]
    assert (call["output"], message["content"][0]["text"]) == ("42", "42")


def test_continuing_a_response_does_not_repeat_its_calls(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json
) -> None:
    response = answer(calling, site, asked_for)
    create(
        calling,
        model=response["model"],
        input="Thanks.",
        previous_response_id=response["id"],
        tools=[server_tool(site)],
        tool_choice="none",
    )
    assert len(site.methods("tools/call")) == 1


def test_a_denied_call_does_not_run_and_the_model_learns_of_it(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json
) -> None:
    response = answer(calling, site, asked_for, approve=False, reason="too dear")
    assert types(response["output"]) == ["message"]
    assert site.methods("tools/call") == []


def described(description: str) -> list[Json]:
    """Return what the server lists, with another description of what is approved of."""
    return [{**TOOLS[0], "description": description}, *TOOLS[1:]]


def test_a_tool_that_is_another_by_now_is_asked_for_again(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json
) -> None:
    site.tools = described("Adds, and sends the sum to somebody else.")
    again = answer(calling, site, asked_for)
    assert types(again["output"]) == ["mcp_list_tools", "mcp_approval_request"]
    listed, request = again["output"]
    assert listed["tools"][0]["description"] == "Adds, and sends the sum to somebody else."
    before = asked_for["output"][1]
    assert request == {**before, "id": request["id"]}
    assert request["id"] != before["id"]
    assert site.methods("tools/call") == []
    # What was approved first is over; what is approved now is run, once.
    response = answer(calling, site, again)
    assert types(response["output"]) == ["mcp_call", "message"]
    assert response["output"][0]["approval_request_id"] == request["id"]
    assert len(site.methods("tools/call")) == 1


@pytest.mark.parametrize("changed", ["inputSchema", "annotations"])
def test_whatever_was_listed_of_a_tool_is_approved_of_with_it(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json, changed: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "A key."}}}
    now = {"inputSchema": schema, "annotations": {"readOnlyHint": False, "destructiveHint": True}}
    site.tools = [{**TOOLS[0], changed: now[changed]}, *TOOLS[1:]]
    again = answer(calling, site, asked_for)
    assert types(again["output"]) == ["mcp_list_tools", "mcp_approval_request"]
    assert site.methods("tools/call") == []


def test_an_approval_does_not_count_at_another_server(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json, model: str
) -> None:
    with fake_mcp_server.site() as elsewhere:  # it lists the same tools
        again = answer(calling, elsewhere, asked_for)
        assert types(again["output"]) == ["mcp_list_tools", "mcp_approval_request"]
        assert site.methods("tools/call") == elsewhere.methods("tools/call") == []
        # The new approval counts there, and there alone.
        assert types(answer(calling, site, again)["output"])[-1] == "mcp_approval_request"
        assert site.methods("tools/call") == []
        assert types(answer(calling, elsewhere, again)["output"]) == ["mcp_call", "message"]
        assert len(elsewhere.methods("tools/call")) == 1


@pytest.mark.parametrize("items", ["all", "without the list"])
def test_an_approval_that_a_client_kept_does_not_count_at_another_server(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json, items: str
) -> None:
    output = asked_for["output"][0 if items == "all" else 1 :]
    request_id = output[-1]["id"]
    given = {
        "type": "mcp_approval_response",
        "approval_request_id": request_id,
        "approve": True,
    }
    asked = {"role": "user", "content": script(ADD, {"say": "42"})}

    def response_at(server: FakeMcpServer) -> Json:
        tools = [server_tool(server, require_approval="always")]
        fields = {"input": [asked, *output, given], "tools": tools, "store": False}
        return create(calling, model=asked_for["model"], **fields)

    with fake_mcp_server.site() as elsewhere:
        assert types(response_at(elsewhere)["output"])[-1] == "mcp_approval_request"
        assert elsewhere.methods("tools/call") == []
    site.tools = described("Something else.")
    assert types(response_at(site)["output"])[-1] == "mcp_approval_request"
    assert site.methods("tools/call") == []
    site.tools = TOOLS
    assert "mcp_call" in types(response_at(site)["output"])


def test_other_tools_may_change_meanwhile(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json
) -> None:
    site.tools = [*TOOLS[:2], {**TOOLS[2], "description": "Bursts."}, {**TOOLS[2], "name": "new"}]
    assert types(answer(calling, site, asked_for)["output"]) == ["mcp_call", "message"]


def test_an_approved_tool_that_is_gone_is_not_called(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json
) -> None:
    site.tools = TOOLS[1:]
    response = answer(calling, site, asked_for)
    assert types(response["output"]) == ["mcp_call", "message"]
    assert "no tool 'add' any more" in response["output"][0]["error"]["content"]
    assert site.methods("tools/call") == []


def test_an_approved_call_whose_server_is_lost_fails_and_the_model_goes_on(
    calling: httpx.Client, site: FakeMcpServer, asked_for: Json
) -> None:
    site.status = 500
    response = answer(calling, site, asked_for)
    assert types(response["output"]) == ["mcp_call", "message"]
    assert "500" in response["output"][0]["error"]["content"]
    assert response["status"] == "completed"


def without_null(value: Any) -> Any:
    """Return JSON as some clients send it back."""
    if isinstance(value, dict):
        return {name: without_null(each) for name, each in value.items() if each is not None}
    return [without_null(each) for each in value] if isinstance(value, list) else value


def test_a_client_that_keeps_nothing_here_approves_alike(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
    site.tools = [{**TOOLS[0], "inputSchema": schema}]
    tools = [server_tool(site, require_approval="always")]
    asked = {"role": "user", "content": script(ADD, {"say": "42"})}

    def asked_for() -> list[Json]:
        return create(calling, model=model, input=[asked], tools=tools, store=False)["output"]

    def approved(output: list[Json]) -> list[str]:
        given = {
            "type": "mcp_approval_response",
            "approval_request_id": output[-1]["id"],
            "approve": True,
        }
        items = [asked, *output, given]
        response = create(calling, model=model, input=items, tools=tools, store=False)
        return types(response["output"])

    assert approved(asked_for()) == ["mcp_call", "message"]
    assert approved(without_null(asked_for())) == ["mcp_call", "message"]
    before = asked_for()
    site.tools = described("Something else.")
    assert approved(before) == ["mcp_list_tools", "mcp_approval_request"]


def test_the_last_of_a_name_is_the_one_that_is_approved_of(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    # As models are told of it: the first one may be a decoy.
    tools = [server_tool(site, require_approval="always")]
    site.tools = [TOOLS[0], TOOLS[0]]
    before = create(calling, model=model, input=script(ADD, {"say": "42"}), tools=tools)
    site.tools = [TOOLS[0], *described("Something else.")]
    again = answer(calling, site, before)
    assert types(again["output"]) == ["mcp_list_tools", "mcp_approval_request"]


def test_what_the_filters_exempt_needs_no_approval(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    tools = [server_tool(site, require_approval={"never": {"tool_names": ["add"]}})]
    response = create(calling, model=model, input=script(ADD, {"say": "ok"}), tools=tools)
    assert types(response["output"]) == CALLED


def test_an_approval_without_a_request_is_refused(calling: httpx.Client, model: str) -> None:
    given = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
    refused = calling.post("/responses", json={"model": model, "input": [given]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "twice"}, "tools[1].server_label"),
        ({"tool_choice": {"type": "mcp", "server_label": "other"}}, "tool_choice"),
    ],
)
def test_contradictory_requests_are_refused_immediately(
    calling: httpx.Client, site: FakeMcpServer, fields: Json, param: str
) -> None:
    tools = [server_tool(site)] * (2 if fields.pop("tools", None) else 1)
    body = {"model": "scripted-chat", "input": "x", "tools": tools, **fields}
    refused = calling.post("/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert site.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "inner.example"},
        {"content-length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"connection": "upgrade"},
        {"UPGRADE": "h2c"},
        {"te": "trailers"},
        {"Proxy-Authorization": "Basic eA=="},
        {"mcp-session-id": "of somebody else"},
        {"accept": "text/html"},
        {"x-key": "a\r\nhost: inner.example"},
        {"x-key": "a\0b"},
        {"x-key": "é"},
        {"x-key": " padded "},
        {"x key": "a"},
        {"x-key:": "a"},
        {"": "a"},
        {"x-\r\nhost": "a"},
        {"x-key": "a" * 20_000},
    ],
)
def test_a_header_that_is_not_the_clients_is_refused(
    calling: httpx.Client, site: FakeMcpServer, headers: Json
) -> None:
    tools = [{"type": "function", "name": "f"}, server_tool(site, headers=headers)]
    refused = calling.post("/responses", json={"model": MODELS[0], "input": "x", "tools": tools})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[1].headers")
    assert site.asked == []


def test_an_authorization_that_is_no_header_is_refused(
    calling: httpx.Client, site: FakeMcpServer
) -> None:
    tools = [server_tool(site, authorization="a\r\nhost: inner.example")]
    refused = calling.post("/responses", json={"model": MODELS[0], "input": "x", "tools": tools})
    assert (refused.status_code, refused.json()["error"]["param"]) == (
        400,
        "tools[0].authorization",
    )


def test_ordinary_headers_reach_the_server(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    headers = {"X-Key": "a b", "cookie": "session=1", "x-empty": "", "User-Agent": "mine"}
    tools = [server_tool(site, headers=headers)]
    create(calling, model=model, input=script(ADD, {"say": "ok"}), tools=tools)
    [sent] = [headers for method, _, headers in site.asked if method == "tools/call"]
    assert (sent["x-key"], sent["cookie"], sent["x-empty"]) == ("a b", "session=1", "")


def test_the_operator_can_require_approval_of_every_call(
    serve_from: Any, tmp_path: Path, site: FakeMcpServer, model: str
) -> None:
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    with (
        serve_from(tmp_path, **allowed, **{"tools.approval": "always"}) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        for given in ("never", {"never": {"tool_names": ["add"]}}):
            tools = [server_tool(site, require_approval=given)]
            response = create(client, model=model, input=script(ADD, {"say": "a"}), tools=tools)
            assert types(response["output"]) == ["mcp_list_tools", "mcp_approval_request"]
            assert response["tools"][0]["require_approval"] == "always"
        assert types(answer(client, site, response)["output"]) == ["mcp_call", "message"]


def test_no_server_is_called_unless_the_operator_allows_it(
    http: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    response = create(http, model=model, input=script({"say": "a"}), tools=[server_tool(site)])
    assert types(response["output"]) == ["mcp_list_tools", "message"]
    assert "--fetch-urls" in response["output"][0]["error"]
    assert site.asked == []


def test_secrets_go_to_the_server_and_nowhere_else(
    calling: httpx.Client,
    site: FakeMcpServer,
    folder: Path,
    model: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = f"secret-{time.monotonic_ns()}"
    tool = server_tool(site, authorization=secret, headers={"x-key": f"key-{secret}"})
    brought = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    asked = {"role": "user", "content": script(ADD, {"say": "ok"})}
    for fields in ({"tools": [tool], "input": [asked]}, {"input": [asked, brought]}):
        body = {"model": model, "stream": True, **fields}
        answer = calling.post("/responses", json=body)
        assert frames(answer.text)[-1]["type"] == "response.completed"
        assert secret not in answer.text
    sent = [headers for method, _, headers in site.asked if method == "tools/call"]
    assert [headers["authorization"] for headers in sent] == [f"Bearer {secret}"] * 2
    assert {headers["x-key"] for headers in sent} == {f"key-{secret}"}
    assert secret not in caplog.text
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"server_label" in kept
    assert secret.encode() not in kept


def test_a_redirect_does_not_take_the_secret_along(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    elsewhere = FakeMcpServer()
    try:
        site.redirect = elsewhere.url
        tool = server_tool(site, authorization="secret")
        response = create(calling, model=model, input=script({"say": "a"}), tools=[tool])
        assert response["output"][0]["error"]
        assert site.asked
        assert elsewhere.asked == []
    finally:
        elsewhere.close()
