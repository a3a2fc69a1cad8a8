"""What a response may take of the server, and what it is told to have taken, turn by turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest
from tests.http.conftest import MODELS, create, frames, script, wait_until
from tests.http.test_mcp import ADD, FakeMcpServer, server_tool, types
from tests.http.tools.test_later_tools import CRM, SEARCH

from antiphon.application.input.from_request import LOGPROB_STEP
from antiphon.domain.bounds import MAX_LOGPROBS

pytestmark = pytest.mark.slow

Json = dict[str, Any]

TOOLS = [{"type": "mcp", "server_label": "odd"}]
SAY: Json = {"mcp": "say", "args": {"words": 5}}
HANG: Json = {"mcp": "hang", "args": {}}
BOOM: Json = {"mcp": "boom", "args": {}}
WAYS = ("whole", "stream", "background")


class Failing(FakeMcpServer):
    """A server that lists its tools and answers every call with a status."""

    def answer(self, asked: Json, params: Json, *, is_other: bool) -> Json:
        if asked["method"] == "tools/call":
            raise ConnectionResetError  # the connection ends without an answer
        return super().answer(asked, params, is_other=is_other)


@pytest.fixture(scope="module")
def http(serve_odd_tools: Any) -> Iterator[httpx.Client]:
    """A client of a server that has odd tools, little patience and few turns."""
    given: Json = {
        "tools.max_turns": 6,
        "tools.timeout_s": 30,
        "fetch.urls": True,
        "fetch.hosts": ["127.0.0.1:*"],
        "fetch.private": ["127.0.0.1"],
    }
    with serve_odd_tools(**given) as client:
        yield client


@pytest.fixture(scope="module")
def hasty(serve_odd_tools: Any) -> Iterator[httpx.Client]:
    """A client of a server whose responses may take a second."""
    with serve_odd_tools(response_s=1) as client:
        yield client


def answered(http: httpx.Client, way: str, **body: Any) -> Json:
    """Return the response as a client has it that asks in this way, which is as it is stored."""
    if way == "stream":
        events = frames(http.post("/responses", json={**body, "stream": True}).text)
        response: Json = events[-1]["response"]
        assert events[-1]["type"] == f"response.{response['status']}"
    else:
        response = create(http, background=way == "background", **body)
    path = f"/responses/{response['id']}"
    wait_until(lambda: http.get(path).json()["status"] not in ("queued", "in_progress"))
    stored: Json = http.get(path).json()
    assert way == "background" or stored == response
    return stored


# --- what is used up ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_only_calls_is_cut_after_its_last_turn(
    http: httpx.Client, model: str, way: str
) -> None:
    response = answered(http, way, model=model, input=script(*[SAY] * 9), tools=TOOLS)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_turns"}
    assert types(response["output"]) == ["mcp_list_tools", *["mcp_call"] * 6]
    assert all(item["output"] for item in response["output"][1:])
    assert len(response["usage_per_turn"]) == 6


def test_a_model_that_only_searches_is_cut_too(http: httpx.Client, model: str) -> None:
    turns = [{"call": "tool_search", "args": {"query": "nothing like it"}}] * 9
    response = create(http, model=model, input=script(*turns), tools=[CRM, SEARCH])
    assert response["incomplete_details"] == {"reason": "max_turns"}
    assert types(response["output"]) == ["tool_search_call", "tool_search_output"] * 6


@pytest.mark.parametrize("way", WAYS)
def test_a_response_has_a_limited_number_of_logprobs(
    http: httpx.Client, model: str, way: str
) -> None:
    response = answered(
        http,
        way,
        model=model,
        input="hi",
        ignore_eos=True,
        top_logprobs=20,
        include=["message.output_text.logprobs"],
    )
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_logprobs"}
    [part] = response["output"][0]["content"]
    entries = len(part["logprobs"]) * 21
    assert MAX_LOGPROBS <= entries < MAX_LOGPROBS + 21 * LOGPROB_STEP
    assert "".join(each["token"] for each in part["logprobs"]) == part["text"]


def test_a_response_that_waits_for_anything_ends_in_time(hasty: httpx.Client) -> None:
    slow = {"say": "word ", "repeat": 100, "tick": 0.1}
    asked = [
        (way, model, turn) for way in WAYS for model in MODELS for turn in (slow, HANG, [SAY, HANG])
    ]
    # Together: each of them takes its second.
    with ThreadPoolExecutor(len(asked)) as threads:
        responses = threads.map(
            lambda each: answered(
                hasty, each[0], model=each[1], input=script(each[2]), tools=TOOLS
            ),
            asked,
        )
    for response in responses:
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_time"}
        assert all(item.get("status") != "in_progress" for item in response["output"])
        assert response["usage"] is None or response["usage"]["input_tokens"] > 0
    assert create(hasty, model=MODELS[0], input="Are you well?")["status"] == "completed"


@pytest.mark.parametrize("way", WAYS)
def test_a_tool_that_breaks_breaks_its_call_alone(http: httpx.Client, model: str, way: str) -> None:
    asked = script(BOOM, SAY, {"say": "I see"})
    response = answered(http, way, model=model, input=asked, tools=TOOLS)
    assert types(response["output"]) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    assert [item["status"] for item in response["output"][1:3]] == ["failed", "completed"]
    assert response["status"] == "completed"


def test_a_dead_server_is_asked_three_times_and_others_go_on(
    http: httpx.Client, model: str
) -> None:
    dead, alive = Failing(), FakeMcpServer()
    try:
        tools = [
            server_tool(dead, server_label="dead"),
            server_tool(alive, server_label="alive"),
        ]
        at_dead, at_alive = {**ADD, "server": "dead"}, {**ADD, "server": "alive"}
        turns = [at_dead, at_alive, at_dead, at_dead, at_dead, {"say": "I see"}]
        response = create(http, model=model, input=script(*turns), tools=tools)
        calls = [item for item in response["output"] if item["type"] == "mcp_call"]
        assert [item["status"] for item in calls] == ["failed", "completed", *["failed"] * 3]
        assert "It is left alone for a while" in calls[-1]["error"]["content"]
        assert len(dead.methods("tools/call")) == 3
        assert response["status"] == "completed"
    finally:
        dead.close()
        alive.close()


# --- what was used --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_usage_is_reported_per_turn(http: httpx.Client, model: str, way: str) -> None:
    turns = [SAY, {"mcp": "say", "args": {"words": 50}}, [SAY, SAY], {"say": "done"}]
    response = answered(http, way, model=model, input=script(*turns), tools=TOOLS)
    usage, each = response["usage"], response["usage_per_turn"]
    assert len(each) == 4
    for name in ("input_tokens", "output_tokens"):
        assert usage[name] == sum(turn[name] for turn in each)
    for details, name in (("input", "cached"), ("output", "reasoning"), ("output", "tool_output")):
        summed = sum(turn[f"{name}_tokens"] for turn in each)
        assert usage[f"{details}_tokens_details"][f"{name}_tokens"] == summed
    assert each[0]["tool_output_tokens"] == 0
    for before, turn in pairwise(each):
        # A prompt is the one before, what the model wrote then, and what the tools gave.
        known = before["input_tokens"] + before["output_tokens"]
        assert turn["input_tokens"] == known + turn["tool_output_tokens"]
        assert turn["cached_tokens"] > 0
    assert each[2]["tool_output_tokens"] > each[1]["tool_output_tokens"] + 40


def test_one_turn_has_nothing_to_tell_apart(http: httpx.Client, model: str) -> None:
    assert "usage_per_turn" not in create(http, model=model, input="hi")
    response = create(http, model=model, input="hi", enable_response_messages=True)
    assert len(response["usage_per_turn"]) == 1


def test_a_cancelled_response_reports_its_usage(http: httpx.Client, model: str) -> None:
    slow = {"say": "word ", "repeat": 500, "tick": 0.02}
    body = {"model": model, "input": script(slow), "background": True, "stream": True}
    with http.stream("POST", "/responses", json=body) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:") and '"response.created"' in line:
                path = f"/responses/{json.loads(line[5:])['response']['id']}"
            if '"response.output_text.delta"' in line:
                break
    usage = http.post(f"{path}/cancel").json()["usage"]
    assert usage["input_tokens"] > 0
    assert 0 < usage["output_tokens"] < 500
