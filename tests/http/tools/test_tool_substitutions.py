"""Labels that stand for tools of this server, and servers that stand in for hosted tools."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script, wait_until
from tests.http.test_mcp import FakeMcpServer, server_tool, types

Json = dict[str, Any]

SAY: Json = {"mcp": "say", "args": {"words": 2}}
AS_SERVER = {"type": "mcp", "server_label": "code_interpreter"}
SEARCHES = (
    {"type": "web_search"},
    {"type": "web_search_2025_08_26"},
    {"type": "web_search_preview"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "mcp", "server_label": "web_search_preview"},
)


@pytest.fixture(scope="module")
def http(serve_odd_tools: Any) -> Iterator[httpx.Client]:
    """A client of a server on which all labels count and a server of tools is the web search."""
    given: Json = {
        "stand_in": ["web_search=odd"],
        "hosted_label": ["code_interpreter", "container", "web_search_preview"],
        "code_interpreter": shutil.which("bwrap") is not None,
    }
    with serve_odd_tools(**given) as client:
        yield client


needs_sandbox = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bwrap here: apt-get install bubblewrap"
)


# --- labels ---------------------------------------------------------------------------------------


@needs_sandbox
@pytest.mark.parametrize("way", ["whole", "stream", "background"])
def test_a_label_stands_for_the_tool_with_its_own_items(
    http: httpx.Client, model: str, way: str
) -> None:
    body = {
        "model": model,
        "input": script({"python": "print(6 * 7)"}, {"say": "42"}),
        "tools": [
            {**AS_SERVER, "server_url": "http://localhost:8888", "require_approval": "never"}
        ],
        "include": ["code_interpreter_call.outputs"],
    }
    if way == "stream":
        response = frames(http.post("/responses", json={**body, "stream": True}).text)[-1][
            "response"
        ]
    else:
        begun = create(http, **body, background=way == "background")
        path = f"/responses/{begun['id']}?include[]=code_interpreter_call.outputs"
        wait_until(lambda: http.get(path).json()["status"] == "completed")
        response = http.get(path).json()
    assert types(response["output"]) == ["code_interpreter_call", "message"]
    assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "42\n"}]
    assert response["tools"][0]["type"] == "mcp"


@needs_sandbox
def test_a_label_may_be_chosen(http: httpx.Client, model: str) -> None:
    for chosen in (
        AS_SERVER,
        {"type": "allowed_tools", "mode": "required", "tools": [AS_SERVER]},
        {"type": "code_interpreter"},
    ):
        response = create(http, model=model, input="x", tools=[AS_SERVER], tool_choice=chosen)
        assert response["output"][0]["type"] == "code_interpreter_call"


@needs_sandbox
def test_what_a_label_hears_nothing_of_is_named(http: httpx.Client) -> None:
    tool = {**AS_SERVER, "server_url": "http://localhost:8888", "allowed_tools": ["python"]}
    body = {"model": "scripted-chat", "input": "hi", "tools": [tool]}
    ignored = http.post("/responses", json=body).headers["x-antiphon-ignored"]
    assert ignored == "tools[0].server_url, tools[0].allowed_tools"


def test_a_label_whose_tool_is_not_there_is_a_tool_that_cannot_run(
    http: httpx.Client, model: str
) -> None:
    tool = {"type": "mcp", "server_label": "container"}
    body: Json = {"model": model, "input": "hi", "tools": [tool]}
    answer = http.post("/responses", json=body)
    assert answer.headers["x-antiphon-ignored"] == "tools[0]"
    assert types(answer.json()["output"])[-1] == "message"
    refused = http.post("/responses", json={**body, "tool_choice": tool})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def test_a_tool_of_this_server_waits_for_no_approval(http: httpx.Client) -> None:
    tool = {**AS_SERVER, "require_approval": "always"}
    refused = http.post(
        "/responses", json={"model": "scripted-chat", "input": "x", "tools": [tool]}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[0].require_approval"


def test_without_the_setting_a_label_is_a_label(serve: Any, model: str) -> None:
    site = FakeMcpServer()
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    try:
        with serve(**allowed) as server, httpx.Client(base_url=server.api) as client:
            tools = [server_tool(site, server_label="code_interpreter")]
            response = create(client, model=model, input="hi", tools=tools)
        assert response["output"][0]["server_label"] == "code_interpreter"
        assert site.methods("tools/list")
    finally:
        site.close()


# --- servers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", SEARCHES, ids=lambda tool: tool.get("server_label", tool["type"]))
def test_a_server_stands_in_for_a_hosted_tool(http: httpx.Client, model: str, tool: Json) -> None:
    response = create(http, model=model, input=script(SAY, {"say": "found"}), tools=[tool])
    assert types(response["output"]) == ["mcp_list_tools", "mcp_call", "message"]
    call = response["output"][1]
    assert (call["server_label"], call["output"]) == ("odd", "word word ")
    assert response["tools"][0]["type"] == tool["type"]


def test_what_stands_in_may_be_chosen(http: httpx.Client, model: str) -> None:
    for tool in SEARCHES:
        response = create(http, model=model, input="x", tools=[tool], tool_choice=tool)
        assert types(response["output"])[:2] == ["mcp_list_tools", "mcp_call"]


def test_the_same_server_may_be_asked_for_in_several_ways(http: httpx.Client, model: str) -> None:
    tools = [*SEARCHES, {"type": "mcp", "server_label": "odd"}]
    response = create(http, model=model, input=script(SAY, {"say": "found"}), tools=tools)
    assert types(response["output"]) == ["mcp_list_tools", "mcp_call", "message"]
    assert [tool["type"] for tool in response["tools"]] == [tool["type"] for tool in tools]


def test_a_conversation_goes_on_with_what_stands_in(http: httpx.Client, model: str) -> None:
    tools = [{"type": "web_search"}]
    first = create(http, model=model, input=script(SAY, {"say": "a"}), tools=tools)
    second = create(
        http,
        model=model,
        input=script(SAY, {"say": "b"}),
        tools=tools,
        previous_response_id=first["id"],
    )
    assert types(second["output"]) == ["mcp_call", "message"]


def test_what_the_one_that_stands_in_hears_nothing_of_is_named(http: httpx.Client) -> None:
    tool = {"type": "web_search", "search_context_size": "high", "user_location": None}
    body = {"model": "scripted-chat", "input": "hi", "tools": [tool]}
    ignored = http.post("/responses", json=body).headers["x-antiphon-ignored"]
    assert ignored == "tools[0].search_context_size"
