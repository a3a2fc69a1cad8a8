"""`metrics` of a response: what happened, and when, for those who include it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, frames, script, stream, wait_until
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

Json = dict[str, Any]
WITH = {"include[]": "metrics"}
TIMES = ("started_at", "admitted_at", "first_token_at", "last_token_at", "ended_at")


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        yield listening


@pytest.fixture(scope="module")
def calling(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    with (
        serve_from(tmp_path_factory.mktemp("calling"), **allowed) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


def metrics_of(http: httpx.Client, response_id: str) -> Json:
    found: Json = http.get(f"/responses/{response_id}", params=WITH).json()["metrics"]
    return found


def test_metrics_are_shown_only_to_those_who_include_them(http: httpx.Client, model: str) -> None:
    response = create(http, model=model, input="hello")
    assert "metrics" not in response
    assert "metrics" not in http.get(f"/responses/{response['id']}").json()
    assert metrics_of(http, response["id"])["turns"]


def test_the_created_response_shows_them_too(http: httpx.Client, model: str) -> None:
    for store in (True, False):
        response = create(http, model=model, input="hello", include=["metrics"], store=store)
        [turn] = response["metrics"]["turns"]
        assert turn["output_tokens"] == response["usage"]["output_tokens"]


def test_only_the_last_event_of_a_stream_shows_them(http: httpx.Client, model: str) -> None:
    body: Json = {"model": model, "input": "hello", "stream": True, "include": ["metrics"]}
    *before, last = frames(http.post("/responses", json=body).text)
    assert last["response"]["metrics"]["turns"][0]["reason"] == "stop"
    assert not any("metrics" in event.get("response", {}) for event in before)


def test_times_follow_each_other(http: httpx.Client, model: str) -> None:
    said = script([{"think": "hm hm hm"}, {"say": "one two three"}])
    response = stream(http, model=model, input=said)
    metrics = metrics_of(http, response["id"])
    [turn] = metrics["turns"]
    times = [metrics["received_at"], metrics["admitted_at"]]
    assert times == sorted(times)
    times = [turn[name] for name in TIMES]
    assert times == sorted(times)
    assert turn["first_token_at"] <= turn["first_text_at"] <= turn["last_token_at"]
    assert turn["ended_at"] <= metrics["ended_at"]
    assert (
        turn["reasoning_tokens"] == response["usage"]["output_tokens_details"]["reasoning_tokens"]
    )


def test_the_delivery_of_a_whole_answer_is_not_shown_as_its_generation(
    http: httpx.Client, model: str
) -> None:
    response = create(http, model=model, input="hello there")
    [turn] = metrics_of(http, response["id"])["turns"]
    assert turn["output_tokens"] > 1
    assert not turn.keys() & {"first_token_at", "first_text_at", "tokens_per_second"}
    assert turn["admitted_at"] <= turn["last_token_at"] <= turn["ended_at"]


def test_each_turn_has_its_calls(calling: httpx.Client, site: FakeMcpServer, model: str) -> None:
    tool = {"type": "mcp", "server_label": "calc", "server_url": site.url}
    tools = [{**tool, "require_approval": "never"}]
    add, boom = {"mcp": "add", "args": {"a": 2, "b": 40}}, {"mcp": "boom", "args": {"a": "x"}}
    response = create(calling, model=model, input=script([add, boom], {"say": "42"}), tools=tools)
    listing, first, second = metrics_of(calling, response["id"])["turns"]
    assert [call["name"] for call in listing["tool_calls"]] == ["tools/list"]
    assert (listing["kind"], first.get("kind"), second.get("kind")) == ("tools", None, None)
    calls = [(call["server"], call["name"], call["result"]) for call in first["tool_calls"]]
    assert calls == [("calc", "add", "ok"), ("calc", "boom", "error")]
    assert all(call["seconds"] >= 0 and call["output_bytes"] > 0 for call in first["tool_calls"])
    assert "tool_calls" not in second
    assert first["last_token_at"] <= first["tool_calls"][0]["started_at"]


def test_a_failed_response_keeps_its_record(http: httpx.Client, model: str) -> None:
    body: Json = {"model": model, "input": script([{"say": "one two"}, {"fail": "gone"}])}
    created = http.post("/responses", json={**body, "background": True}).json()
    path = f"/responses/{created['id']}"
    wait_until(lambda: http.get(path).json()["status"] not in ("queued", "in_progress"))
    metrics = metrics_of(http, created["id"])
    assert http.get(path).json()["status"] == "failed"
    assert metrics.get("ended_at") is not None
    assert "reason" not in metrics["turns"][0]


@pytest.mark.one_process
def test_a_running_response_says_what_it_is_doing(http: httpx.Client, model: str) -> None:
    said = script([{"think": "hm"}, {"say": "word " * 200, "tick": 0.05}])
    body: Json = {"model": model, "input": said, "background": True}
    created = http.post("/responses", json=body).json()
    try:
        wait_until(lambda: metrics_of(http, created["id"]).get("phase") == "writing")
        [turn] = metrics_of(http, created["id"])["turns"]
        assert turn["output_tokens"] > 0
        assert "ended_at" not in turn
    finally:
        http.post(f"/responses/{created['id']}/cancel")


def test_the_record_says_who_asked(serve_from: Any, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.toml"
    headers = {**bearer(new_key(keys_file)), "x-request-id": "my-request"}
    with (
        serve_from(tmp_path, auth="on", keys_file=keys_file) as server,
        httpx.Client(base_url=server.api, headers=headers, timeout=10) as client,
    ):
        response = create(client, model="scripted-chat", input="hi")
        metrics = metrics_of(client, response["id"])
    assert (metrics["key_name"], metrics["request_id"]) == ("test", "my-request")
    assert metrics["key_id"].startswith("key_")
