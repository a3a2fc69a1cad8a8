"""Servers that share a store: clients need not know which of them runs what."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"
LONG = '@@script [[{"say": "word ", "repeat": 10000, "tick": 0.02}]]'
SHORT = '@@script [[{"say": "word ", "repeat": 20, "tick": 0.02}]]'
AT_ONCE_S = 10.0
"""Within which what one server is told has an effect on another, on a machine however busy: what is
not told waits 200 seconds. `test_two_servers.py` measures how long it takes.
"""


@pytest.fixture
def servers(serve: Any, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    file = f"sqlite:///{tmp_path}/kept.db"
    options = {"store": file, "graceful_shutdown_s": 0, "background_runs": 2}
    with serve(**options) as first, serve(**options) as second:
        yield first, second


def within(limit_s: float, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def in_background(server: Any, asked: str, **fields: Any) -> str:
    body = {"model": MODEL, "input": asked, "background": True, **fields}
    answer = httpx.post(f"{server.api}/responses", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def status(server: Any, response_id: str) -> str:
    return str(httpx.get(f"{server.api}/responses/{response_id}").json()["status"])


def stream(server: Any, response_id: str, **query: Any) -> Iterator[dict[str, Any]]:
    url = f"{server.api}/responses/{response_id}"
    with httpx.stream("GET", url, params={"stream": "true", **query}, timeout=10) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def test_a_run_is_streamed_and_resumed_from_any_server(servers: Any) -> None:
    first, second = servers
    response_id = in_background(first, SHORT, stream=False)
    there = list(stream(second, response_id))
    assert [event["sequence_number"] for event in there] == list(range(len(there)))
    assert there[-1]["type"] == "response.completed"
    assert list(stream(first, response_id)) == there
    for after in (0, 7, len(there) - 2):
        resumed = list(stream(second, response_id, starting_after=after))
        assert resumed == there[after + 1 :]


def test_events_reach_readers_on_another_server_soon(servers: Any) -> None:
    first, second = servers
    response_id = in_background(first, LONG)
    events = stream(second, response_id)
    begun = time.monotonic()
    texts = 0
    for event in events:
        texts += event["type"] == "response.output_text.delta"
        if texts == 10:
            break
    assert time.monotonic() - begun < AT_ONCE_S + 10 * 0.02


@pytest.mark.parametrize("asked", ["cancel", "delete"])
def test_a_run_is_stopped_from_any_server_at_once(servers: Any, asked: str) -> None:
    first, second = servers
    engine = first.engine(MODEL)
    response_id = in_background(first, LONG)
    events = stream(first, response_id)
    within(AT_ONCE_S, lambda: next(events)["type"] == "response.output_text.delta")
    told_at = time.monotonic()
    url = f"{second.api}/responses/{response_id}"
    answer = httpx.post(f"{url}/cancel") if asked == "cancel" else httpx.delete(url)
    assert answer.status_code == 200
    within(AT_ONCE_S, lambda: engine.running == 0)
    *_, last = events
    assert time.monotonic() - told_at < AT_ONCE_S
    if asked == "cancel":
        assert answer.json()["status"] == "cancelled"
        assert last["response"] == answer.json()
        usage = answer.json()["usage"]
        assert usage["input_tokens"] > 0
        assert usage["output_tokens"] > 0, "what was written counts, wherever the run ends"
        assert httpx.post(f"{first.api}/responses/{response_id}/cancel").json() == answer.json()
    else:
        assert last["type"] in ("response.incomplete", "error")
        assert httpx.get(f"{first.api}/responses/{response_id}").status_code == 404


def test_a_foreground_run_is_deleted_from_any_server(servers: Any) -> None:
    first, second = servers
    body = {"model": MODEL, "input": LONG, "stream": True}
    with httpx.stream("POST", f"{first.api}/responses", json=body, timeout=10) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        response_id = json.loads(next(lines).removeprefix("data: "))["response"]["id"]
        assert httpx.delete(f"{second.api}/responses/{response_id}").status_code == 200
        told_at = time.monotonic()
        *_, last = lines
        assert time.monotonic() - told_at < AT_ONCE_S
    assert json.loads(last.removeprefix("data: "))["type"] == "response.failed"
    within(AT_ONCE_S, lambda: first.engine(MODEL).running == 0)


def test_what_one_server_has_no_room_for_runs_on_the_other(servers: Any) -> None:
    first, second = servers
    running = [in_background(first, LONG) for _ in range(4)]
    within(30, lambda: [status(first, each) for each in running] == ["in_progress"] * 4)
    assert first.engine(MODEL).running == second.engine(MODEL).running == 2
    waiting = in_background(second, SHORT)
    assert status(first, waiting) == "queued"
    httpx.post(f"{second.api}/responses/{running[0]}/cancel")
    within(30, lambda: status(second, waiting) == "completed")


def test_each_of_many_runs_once_and_comes_to_its_end(servers: Any) -> None:
    first, second = servers
    made = [in_background(servers[n % 2], "hi") for n in range(40)]
    for response_id in made:
        within(30, lambda made=response_id: status(first, made) == "completed")
        assert status(second, response_id) == "completed"
        events = list(stream(second, response_id))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events].count("response.in_progress") == 1
    assert first.engine(MODEL).running == second.engine(MODEL).running == 0


def test_too_many_that_wait_are_refused_and_may_come_again(serve: Any) -> None:
    with serve(background_runs=1, max_waiting=1, graceful_shutdown_s=0) as server:
        for _ in range(2):
            in_background(server, LONG)
        body = {"model": MODEL, "input": "hi", "background": True}
        refused = httpx.post(f"{server.api}/responses", json=body)
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        plain = httpx.post(f"{server.api}/responses", json={"model": MODEL, "input": "hi"})
        assert plain.status_code == 200, "only what may wait is bounded"


def test_no_secret_of_a_request_that_waits_is_in_the_store(serve: Any, tmp_path: Path) -> None:
    server_of_tools = {
        "type": "mcp",
        "server_label": "shop",
        "server_url": "https://shop.example/mcp",
        "authorization": "canary-token",
        "headers": {"x-key": "canary-key"},
    }
    options = {"store": f"sqlite:///{tmp_path}/kept.db", "graceful_shutdown_s": 0}
    with serve(**options, background_runs=1) as server:
        in_background(server, LONG)
        waiting = in_background(server, "hi", tools=[server_of_tools])
        assert status(server, waiting) == "queued"
        kept = b"".join(each.read_bytes() for each in tmp_path.glob("kept.db*"))
        assert waiting.encode() in kept
        assert b"canary" not in kept
