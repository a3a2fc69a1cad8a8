"""Sub-agents over HTTP: what is refused, the bounds of a tree, and its ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.access.test_limits import Keys
from tests.http.conftest import create, script, wait_until
from tests.http.tools.test_multi_agent import (
    AGENTS,
    BETA,
    GO,
    WAIT,
    Json,
    act,
    answers_to,
    ask,
    outputs,
    said,
    spawn,
    texts,
    told,
)


@pytest.fixture
def beta(server: Any) -> Iterator[httpx.Client]:
    """A client that knows sub-agents."""
    with httpx.Client(base_url=server.api, timeout=30, headers=BETA) as client:
        yield client


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "fields", "param"),
    [
        ({}, {}, "multi_agent"),
        ({"OpenAI-Beta": "responses_websockets=2026-02-06"}, {}, "multi_agent"),
        (BETA, {"store": False}, "multi_agent"),
        (BETA, {"max_tool_calls": 3}, "max_tool_calls"),
        (BETA, {"multi_agent": {}}, "multi_agent.enabled"),
        (BETA, {"multi_agent": {"enabled": "yes"}}, "multi_agent.enabled"),
        (
            BETA,
            {"multi_agent": {"enabled": True, "max_concurrent_subagents": 0}},
            "multi_agent.max_concurrent_subagents",
        ),
        (
            BETA,
            {"multi_agent": {"enabled": True, "max_concurrent_subagents": 17}},
            "multi_agent.max_concurrent_subagents",
        ),
        (BETA, {"tools": [{"type": "multi_agent"}]}, "tools[0].type"),
        (BETA, {"tool_choice": {"type": "multi_agent"}}, "tool_choice"),
    ],
)
def test_a_request_that_cannot_have_agents_is_refused_with_the_field(
    http: httpx.Client, headers: Json, fields: Json, param: str
) -> None:
    body = {"model": "scripted-chat", "input": "Hi", "multi_agent": AGENTS, **fields}
    answer = http.post("/responses", json=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "value",
    ["a=1, responses_multi_agent=v1", "responses_multi_agent=v1,b", "responses_multi_agent=v1"],
)
def test_the_header_may_name_other_betas_as_well(http: httpx.Client, value: str) -> None:
    body = {"model": "scripted-chat", "input": "Hi", "multi_agent": AGENTS}
    answer = http.post("/responses", json=body, headers={"OpenAI-Beta": value})
    assert answer.status_code == 200


def test_agents_that_are_not_enabled_need_no_header_and_change_nothing(
    http: httpx.Client, model: str
) -> None:
    response = create(http, model=model, input="Hi", multi_agent={"enabled": False}, store=False)
    assert all("agent" not in item for item in response["output"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (act("spawn_agent", task_name="north"), "message"),
        (act("spawn_agent", task_name="No Good", message="x"), "task_name"),
        (act("spawn_agent", task_name="north", message="x", fork_turns="some"), "fork_turns"),
        ({"call": "spawn_agent", "args": "{"}, "arguments"),
        (act("send_message", target="nobody", message="x"), "There is no agent 'nobody'"),
        (act("send_message", target="/root", message="x"), "There is no agent '/root'"),
        (act("followup_task", target="nobody", message="x"), "You have started no agent"),
        (act("interrupt_agent", target="/root"), "You have started no agent"),
        (act("wait_agent", timeout_ms=-1), "timeout_ms"),
        (act("list_agents"), '"agents":[]'),
        (act("wait_agent"), "Nothing else will come."),
    ],
)
def test_a_call_that_can_do_nothing_is_told_to_the_model(
    beta: httpx.Client, model: str, call: Json, words: str
) -> None:
    response = ask(beta, model, call, said("I see."))
    assert response["status"] == "completed"
    assert words in outputs(response, call["call"])[0]
    assert texts(response) == [("/root", "I see.")]


# --- bounds ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_server(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server with one background slot, for trees of few agents."""
    bounds = {"agents.total": 3, "agents.concurrent": 2, "agents.depth": 2}
    folder = tmp_path_factory.mktemp("small")
    with serve_from(folder, store="sqlite", background_runs=1, **bounds) as served:
        yield served


@pytest.fixture
def small(small_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small_server.api, timeout=30, headers=BETA) as client:
        yield client


def ended(client: httpx.Client, response: Json, limit_s: float = 30.0) -> Json:
    """Return a background response when it has ended."""
    found: Json = {}

    def has_ended() -> bool:
        found.update(client.get(f"/responses/{response['id']}").json())
        return found["status"] not in ("queued", "in_progress")

    wait_until(has_ended, limit_s)
    return found


def test_one_slot_is_enough_for_a_tree_of_agents(small: httpx.Client, model: str) -> None:
    inner = spawn("tester", said("It works."))
    writer = spawn("writer", inner, WAIT, said("Written."))
    response = ask(small, model, writer, WAIT, said("Done."), background=True)
    assert [text for _, text in texts(ended(small, response))] == ["It works.", "Written.", "Done."]


def test_a_name_is_used_once(small: httpx.Client, model: str) -> None:
    twice = [spawn("north", said("Snow.")), spawn("north", said("Sun."))]
    response = ask(small, model, twice, WAIT, said("Done."))
    assert "There is an agent /root/north already" in outputs(response, "spawn_agent")[1]
    assert len(told(response)) == 2


def test_no_more_agents_work_at_a_time_than_the_request_says(
    small: httpx.Client, model: str
) -> None:
    slow = {"say": "Snow.", "delay": 0.5}
    response = ask(
        small,
        model,
        [spawn("one", slow), spawn("two", slow)],
        WAIT,
        spawn("three", said("Sun.")),
        WAIT,
        said("Done."),
        multi_agent={"enabled": True, "max_concurrent_subagents": 1},
    )
    first, second, third = outputs(response, "spawn_agent")
    assert "/root/one" in first
    assert "1 sub-agents work at this time" in second
    assert "/root/three" in third


def test_the_agents_of_agents_count_as_well(small: httpx.Client, model: str) -> None:
    inner = spawn("tester", said("It works."))
    response = ask(
        small,
        model,
        spawn("writer", inner, said("Alone.")),
        WAIT,
        said("Done."),
        multi_agent={"enabled": True, "max_concurrent_subagents": 1},
    )
    assert "work at this time" in outputs(response, "spawn_agent")[1]


def test_a_tree_has_no_more_agents_and_no_deeper_ones_than_the_server_allows(
    small: httpx.Client, model: str
) -> None:
    deep = spawn("one", spawn("two", spawn("three", said("Deep.")), said("Two.")), WAIT, said("1."))
    response = ask(small, model, deep, WAIT, said("Done."))
    assert any("at most 2 deep" in each for each in outputs(response, "spawn_agent"))
    turns = [turn for name in "abcd" for turn in (spawn(name, said("Here.")), WAIT)]
    response = ask(small, model, *turns, said("Done."))
    results = outputs(response, "spawn_agent")
    assert "has had 3 sub-agents" in results[3]
    assert "/root/c" in results[2]


CHATTY = {"say": "snow ", "repeat": 5000}
ALL_AT_ONCE = [spawn(name, CHATTY) for name in ("one", "two", "three")]
TREES: dict[str, list[Any]] = {
    "one agent": [spawn("one", CHATTY), WAIT, CHATTY],
    "agents beside each other": [ALL_AT_ONCE, CHATTY],
    "agents one after another": [spawn("one", CHATTY), WAIT, spawn("two", CHATTY), WAIT, CHATTY],
    "agents of agents": [
        [spawn("one", spawn("inner", CHATTY), CHATTY), spawn("two", CHATTY)],
        CHATTY,
    ],
    "an agent that leaves most of its share": [spawn("one", said("Sun.")), WAIT, CHATTY],
    "an agent that ends while the root writes": [spawn("one", {"say": "a", "delay": 0.5}), CHATTY],
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("bound", [600, 1001])
def test_all_agents_together_write_no_more_tokens_than_the_request_says(
    beta: httpx.Client, model: str, tree: str, bound: int
) -> None:
    response = ask(beta, model, *TREES[tree], WAIT, max_output_tokens=bound, include=["metrics"])
    assert response["status"] == "incomplete"
    assert response["incomplete_details"]["reason"] == "max_output_tokens"
    assert written(beta, response) <= bound
    if tree.startswith(("one agent", "agents one after", "an agent that leaves")):
        # All had ended, so nothing was kept for anybody.
        assert response["usage"]["output_tokens"] == bound


def test_agents_that_go_on_share_what_the_next_request_allows(
    beta: httpx.Client, model: str
) -> None:
    agents = [spawn(name, {"call": "go"}, CHATTY) for name in ("north", "south")]
    first = ask(beta, model, agents, WAIT, WAIT, WAIT, CHATTY, tools=[GO])
    assert first["status"] == "completed"
    second = create(
        beta,
        model=model,
        previous_response_id=first["id"],
        input=answers_to(first),
        tools=[GO],
        multi_agent=AGENTS,
        max_output_tokens=900,
    )
    assert 300 <= written(beta, second) <= 900


def written(client: httpx.Client, response: Json) -> int:
    """Return the output tokens of all agents of a tree, also of those that were stopped."""
    ended(client, response)
    shown = client.get(f"/responses/{response['id']}", params={"include[]": "metrics"}).json()
    own = sum(turn["output_tokens"] for turn in shown["metrics"]["turns"])
    agents = shown["metrics"].get("agents", ())
    return own + sum(written(client, {"id": agent["response_id"]}) for agent in agents)


def test_an_agent_that_used_up_its_share_is_told_to_the_one_above(
    beta: httpx.Client, model: str
) -> None:
    response = ask(beta, model, spawn("north", CHATTY), WAIT, said("Go on."), max_output_tokens=400)
    assert response["status"] == "completed"
    assert "cut off" in told(response)[-1][2]
    assert texts(response)[-1] == ("/root", "Go on.")


def test_a_server_may_have_no_agents(serve_from: Any, tmp_path: Any) -> None:
    with (
        serve_from(tmp_path, **{"agents.total": 0}) as server,
        httpx.Client(base_url=server.api, timeout=30, headers=BETA) as client,
    ):
        body = {"model": "scripted-chat", "input": "Hi", "multi_agent": AGENTS}
        answer = client.post("/responses", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "multi_agent"


# --- ends -----------------------------------------------------------------------------------------


def running_child(client: httpx.Client, response: Json) -> str:
    """Return the id of the agent's response, once it runs."""
    found: list[str] = []

    def has_child() -> bool:
        shown = client.get(f"/responses/{response['id']}", params={"include[]": "metrics"})
        agents = shown.json()["metrics"].get("agents", [])
        found.extend(agent["response_id"] for agent in agents)
        return bool(found)

    wait_until(has_child)
    return found[0]


def test_agents_end_when_the_response_that_started_them_is_cancelled(
    beta: httpx.Client, model: str
) -> None:
    slow = {"say": "Snow.", "delay": 60}
    deep = spawn("north", spawn("inner", slow), WAIT, said("Done."))
    response = ask(beta, model, deep, WAIT, said("Done."), background=True)
    child = running_child(beta, response)
    grandchild = running_child(beta, {"id": child})
    assert beta.post(f"/responses/{response['id']}/cancel").json()["status"] == "cancelled"
    for each in (child, grandchild):
        assert ended(beta, {"id": each})["status"] == "cancelled"


@pytest.mark.parametrize("is_running", [True, False])
def test_the_responses_of_agents_are_deleted_with_the_one_that_started_them(
    beta: httpx.Client, model: str, is_running: bool
) -> None:
    last = {"say": "Snow.", "delay": 60 if is_running else 0}
    deep = spawn("north", spawn("inner", last), WAIT, said("Done."))
    response = ask(beta, model, deep, WAIT, said("Done."), background=True)
    child = running_child(beta, response)
    grandchild = running_child(beta, {"id": child})
    if not is_running:
        assert ended(beta, response)["status"] == "completed"
    assert beta.delete(f"/responses/{response['id']}").status_code == 200
    for each in (response["id"], child, grandchild):
        assert beta.get(f"/responses/{each}").status_code == 404


def test_agents_end_when_the_client_leaves_a_stream(beta: httpx.Client, model: str) -> None:
    body = {
        "model": model,
        "input": script(spawn("north", {"say": "Snow.", "delay": 60}), WAIT, said("Done.")),
        "multi_agent": AGENTS,
        "stream": True,
    }
    with beta.stream("POST", "/responses", json=body) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
        child = running_child(beta, first["response"])
    assert ended(beta, {"id": child})["status"] == "cancelled"


def test_an_agent_that_was_deleted_is_told_to_the_one_above(beta: httpx.Client, model: str) -> None:
    slow = spawn("north", {"say": "Snow.", "delay": 60})
    response = ask(beta, model, slow, WAIT, said("A pity."), background=True)
    child = running_child(beta, response)
    assert beta.delete(f"/responses/{child}").status_code == 200
    done = ended(beta, response)
    assert told(done)[-1][:2] == ("/root/north", "/root")
    assert texts(done)[-1] == ("/root", "A pity.")


@pytest.fixture(scope="module")
def keys(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    folder = tmp_path_factory.mktemp("keys")
    file = folder / "keys.toml"
    file.touch()
    with serve_from(folder, auth="on", keys_file=file, store="sqlite") as server:
        yield Keys(file, server)


def test_a_key_needs_the_right_to_have_agents(keys: Keys) -> None:
    body = {"model": "scripted-chat", "input": "Hi", "multi_agent": AGENTS}
    for tools, status in ((("function", "multi_agent"), 200), (("function",), 403)):
        with keys.client(tools=tools) as client:
            answer = client.post("/responses", json=body, headers=BETA)
            assert answer.status_code == status, answer.text


def test_an_agent_counts_as_a_request_of_its_key(keys: Keys) -> None:
    with keys.client(limits={"requests/day": 2}) as client:
        client.headers.update(BETA)
        turns = [spawn("one", said("1.")), spawn("two", said("2.")), WAIT, said("Done.")]
        response = ask(client, "scripted-chat", *turns)
    first, second = outputs(response, "spawn_agent")
    assert "/root/one" in first
    assert "could not be started: Rate limit reached" in second
    assert texts(response)[-1] == ("/root", "Done.")
