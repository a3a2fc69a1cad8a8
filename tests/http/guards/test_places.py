"""Guards over HTTP, at each of their places, with each of their verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, stream, text_of
from tests.http.guards.conftest import SAID, TOOLS, ServeGuarded
from tests.http.guards.odd_guards import MESSAGE, WORD

Json = dict[str, Any]

MCP = [{"type": "mcp", "server_label": "odd", "require_approval": "never"}]
FUNCTION = [{"type": "function", "name": "f", "parameters": {}}]
PLACES = ("input", "tool_call", "tool_result", "output")


@pytest.fixture(scope="module", params=["refuse", "stop", "mask"])
def verdict(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def servers(serve_guarded: ServeGuarded, verdict: str) -> Iterator[dict[str, httpx.Client]]:
    """A client for each place where alone guards are asked."""
    with ExitStack() as stack:
        clients = {}
        for place in PLACES:
            server = stack.enter_context(serve_guarded(verdict, place, tool=[TOOLS]))
            client = httpx.Client(base_url=server.api, timeout=30)
            clients[place] = stack.enter_context(client)
        yield clients


def verdicts_of(response: Json) -> list[tuple[str, str]]:
    return [(each["place"], each["verdict"]) for each in response["metrics"]["guards"]]


def refusal_of(response: Json) -> str:
    [message] = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part.get("refusal", "") for part in message["content"])


def check_end(response: Json, verdict: str) -> None:
    """Check how a response has ended of which a text did not pass."""
    assert WORD not in json.dumps(response["output"])
    if verdict == "stop":
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "content_filter"}
    else:
        assert response["status"] == "completed"
    if verdict == "refuse":
        assert refusal_of(response) == MESSAGE


@pytest.mark.parametrize("send", [create, stream])
def test_what_a_model_writes(
    servers: dict[str, httpx.Client], verdict: str, model: str, send: Any
) -> None:
    body = {"model": model, "input": script({"say": SAID}), "include": ["metrics"]}
    response = send(servers["output"], **body)
    check_end(response, verdict)
    assert ("output", verdict.replace("mask", "replace")) in verdicts_of(response)
    if verdict == "mask":
        assert text_of(response) == SAID.replace(WORD, "*****")


def test_what_a_request_sends(servers: dict[str, httpx.Client], verdict: str, model: str) -> None:
    http = servers["input"]
    body = {"model": model, "input": script({"say": SAID}), "include": ["metrics"]}
    response = create(http, **body)
    check_end(response, verdict)
    if verdict == "mask":
        assert text_of(response) == SAID.replace(WORD, "*****")
        items = http.get(f"/responses/{response['id']}/input_items").text
        assert WORD not in items
        assert "*****" in items
    else:
        assert response["usage"]["input_tokens"] == 0, "no model was asked"


def test_what_came_before_a_request(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    http = servers["input"]
    before = http.post("/conversations", json={"items": [{"role": "user", "content": SAID}]})
    body = {"conversation": before.json()["id"], "input": script({"say": "Well."})}
    response = create(http, model=model, **body)
    check_end(response, verdict)
    assert text_of(response) == ("Well." if verdict == "mask" else "")


def test_a_refused_request_is_not_read_later(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    http = servers["input"]
    first = create(http, model=model, input=SAID)
    body = {"previous_response_id": first["id"], "input": script({"say": "Well."})}
    check_end(create(http, model=model, **body), verdict)


def test_a_call_of_a_tool_that_the_server_runs(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    turns = [{"mcp": "echo", "args": {"echo": WORD}}, {"say": "Well."}]
    body = {"model": model, "input": script(*turns), "tools": MCP, "include": ["metrics"]}
    response = create(servers["tool_call"], **body)
    assert WORD not in json.dumps(response["output"])
    [call] = [item for item in response["output"] if item["type"] == "mcp_call"] or [None]
    if verdict == "stop":
        assert call is None
        assert response["incomplete_details"] == {"reason": "content_filter"}
        return
    assert call is not None
    assert text_of(response) == "Well.", "the model goes on"
    if verdict == "refuse":
        assert call["status"] == "failed"
        assert call["error"]["content"] == MESSAGE
        assert call["arguments"] == "{}"
        calls = [
            call for turn in response["metrics"]["turns"] for call in turn.get("tool_calls", ())
        ]
        assert calls[-1]["result"] == "refused"
    else:
        assert call["output"] == "*****"
        assert json.loads(call["arguments"]) == {"echo": "*****"}


def test_a_call_of_a_tool_that_the_client_runs(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    turns = [{"call": "f", "args": {"a": WORD}}]
    response = create(servers["tool_call"], model=model, input=script(*turns), tools=FUNCTION)
    assert WORD not in json.dumps(response["output"])
    if verdict == "mask":
        [call] = response["output"]
        assert json.loads(call["arguments"]) == {"a": "*****"}
    else:
        check_end(response, verdict)
        assert all(item["type"] != "function_call" for item in response["output"])


def test_the_result_of_a_call(servers: dict[str, httpx.Client], verdict: str, model: str) -> None:
    turns = [{"mcp": "say", "args": {}}, {"say": "Well."}]
    response = create(
        servers["tool_result"], model=model, input=script(*turns), tools=MCP, store=True
    )
    assert WORD not in json.dumps(response["output"])
    [call] = [item for item in response["output"] if item["type"] == "mcp_call"]
    if verdict == "mask":
        assert call["output"] == "The word is *****."
    elif verdict == "refuse":
        assert call["error"]["content"] == MESSAGE
    if verdict == "stop":
        assert response["incomplete_details"] == {"reason": "content_filter"}
    else:
        assert text_of(response) == "Well."


def test_an_approved_call(servers: dict[str, httpx.Client], verdict: str, model: str) -> None:
    """The client sends what it approves, so it is asked about as what the model writes."""
    tools = [{**MCP[0], "require_approval": "always"}]
    asked = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "odd",
        "name": "echo",
        "arguments": json.dumps({"echo": WORD}),
    }
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    body = {"input": [{"role": "user", "content": "Go on."}, asked, answer], "tools": tools}
    response = create(servers["tool_call"], model=model, **body)
    assert WORD not in json.dumps(response["output"])
    [call] = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert call["output"] == ("*****" if verdict == "mask" else None)


def test_the_input_of_a_decision(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    question = {"type": "predicate", "instructions": "It is magic."}
    body = {"model": model, "input": SAID, "questions": [question]}
    answer = servers["input"].post("/decisions", json=body)
    if verdict == "mask":
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("input", "content_filter")
    assert error["message"] == (
        MESSAGE if verdict == "refuse" else "This was stopped by a guard of the server."
    )


def test_a_prompt_of_tokens_is_refused_since_no_guard_can_read_it(
    servers: dict[str, httpx.Client], model: str
) -> None:
    body = {"model": model, "prompt": [1, 2, 3], "max_tokens": 5}
    answer = servers["input"].post("/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert "send the prompt as a text" in answer.json()["error"]["message"]
    assert servers["output"].post("/completions", json=body).status_code == 200


def test_the_text_of_a_file(servers: dict[str, httpx.Client], verdict: str, model: str) -> None:
    http = servers["input"]
    files = {"file": ("notes.txt", SAID.encode())}
    uploaded = http.post("/files", files=files, data={"purpose": "user_data"}).json()
    content = [
        {"type": "input_file", "file_id": uploaded["id"]},
        {"type": "input_text", "text": script({"say": "Well."})},
    ]
    response = create(http, model=model, input=[{"role": "user", "content": content}])
    check_end(response, verdict)
    assert text_of(response) == ("Well." if verdict == "mask" else "")


def test_a_warm_up_reads_nothing_that_is_refused(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    response = create(servers["input"], model=model, input=SAID, generate=False)
    if verdict != "mask":
        assert response["usage"]["input_tokens"] == 0


def test_a_call_before_a_text_that_does_not_pass_is_not_run(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    turns = [[{"say": SAID}, {"mcp": "echo", "args": {"echo": "ran"}}], {"say": "Well."}]
    body = {"model": model, "input": script(*turns), "tools": MCP, "include": ["metrics"]}
    response = create(servers["output"], **body)
    check_end(response, verdict)
    ran = [item for item in response["output"] if item.get("output") == "ran"]
    assert bool(ran) is (verdict == "mask")


def test_a_summary_of_reasoning(servers: dict[str, httpx.Client], verdict: str, model: str) -> None:
    turns = [[{"think": f"{'so ' * 20}it is fine."}, {"say": "Well."}]]
    body = {"model": model, "input": script(*turns), "reasoning": {"summary": "auto"}}
    response = create(servers["output"], **body)
    assert text_of(response) == "Well."
    [reasoning] = [item for item in response["output"] if item["type"] == "reasoning"]
    assert reasoning["summary"][0]["text"]


def test_a_summary_has_no_word_that_its_reasoning_may_not_have(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    body = {
        "model": model,
        "input": script([{"think": SAID}, {"say": "Well."}]),
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }
    response = stream(servers["output"], **body)
    check_end(response, verdict)


def test_a_result_that_is_stopped_ends_a_response_that_waits_for_its_client(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    turns = [[{"mcp": "say", "args": {}}, {"call": "f", "args": {}}]]
    response = create(
        servers["tool_result"], model=model, input=script(*turns), tools=[*MCP, *FUNCTION]
    )
    assert WORD not in json.dumps(response["output"])
    assert response["status"] == ("incomplete" if verdict == "stop" else "completed")
