"""Admission over HTTP and WebSocket: refusals are quick and tell when to come back."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script, wait_until
from tests.http.wire.websocket_client import Client
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"
HANG = {"model": MODEL, "input": script([{"say": "Once"}, {"hang": 600}]), "stream": True}
QUICK = {"model": MODEL, "input": "hi"}


@pytest.fixture
def full(serve: Any) -> Iterator[Any]:
    """A server for one response at a time, which is running; one more may wait."""
    with (
        serve(max_runs=1, max_queued=1) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
        client.stream("POST", "/responses", json=HANG),
    ):
        yield server


@contextmanager
def connection_to(server: Any, body: bytes, *, length: int) -> Iterator[socket.socket]:
    """Send a request over a connection of its own."""
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        yield connection


@contextmanager
def waiting(server: Any) -> Iterator[socket.socket]:
    """Send a request that waits in the queue."""
    body = json.dumps(QUICK).encode()
    with connection_to(server, body, length=len(body)) as connection:
        wait_until(lambda: server.app.services.admission.runs.waiting == 1)
        yield connection


def test_a_full_server_refuses_before_the_body_arrives(full: Any) -> None:
    with waiting(full), connection_to(full, b"", length=100_000) as connection:
        answer = HTTPResponse(connection)
        answer.begin()
        body = answer.read()
    assert (answer.status, answer.getheader("retry-after")) == (429, "1")
    assert b'"code":"rate_limit_exceeded"' in body


def test_a_client_that_leaves_the_queue_makes_room(full: Any) -> None:
    queue = full.app.services.admission.runs
    with waiting(full):
        pass
    wait_until(lambda: queue.waiting == 0)
    with waiting(full) as connection:
        assert queue.waiting == 1
        connection.close()
        wait_until(lambda: queue.waiting == 0)


def test_a_message_on_a_websocket_needs_admission_too(full: Any) -> None:
    with waiting(full), connect(f"{full.url.replace('http', 'ws')}/v1/responses") as connection:
        error = Client(connection).refusal()
    assert error["code"] == "rate_limit_exceeded"


def test_health_and_stored_responses_need_no_admission(full: Any) -> None:
    with waiting(full):
        assert httpx.get(f"{full.url}/livez").status_code == 200
        assert httpx.get(f"{full.url}/readyz").status_code == 200
        assert httpx.get(f"{full.api}/responses/resp_x").status_code == 404


def test_a_request_that_waited_too_long_gets_503(serve: Any) -> None:
    with (
        serve(max_runs=1, queue_s=0.1) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
        client.stream("POST", "/responses", json=HANG),
    ):
        answer = httpx.post(f"{server.api}/responses", json=QUICK)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_a_message_that_waited_too_long_gets_529(serve: Any) -> None:
    message = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    with (
        serve(max_runs=1, queue_s=0.1) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
        client.stream("POST", "/responses", json=HANG),
    ):
        answer = httpx.post(f"{server.api}/messages", json=message, timeout=30)
    assert (answer.status_code, answer.headers["retry-after"]) == (529, "1")
    assert answer.json()["error"]["type"] == "overloaded_error"
    assert answer.json()["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    ("deadline", "written"), [({"first_token_s": 0.2}, ""), ({"between_tokens_s": 0.2}, "Once")]
)
def test_a_response_whose_engine_stalls_fails_with_its_output_so_far(
    serve: Any, deadline: dict[str, float], written: str
) -> None:
    parts = [{"say": written}, {"hang": 600}] if written else [{"hang": 600}, {"say": "never"}]
    with serve(**deadline) as server, httpx.Client(base_url=server.api, timeout=30) as client:
        answer = client.post("/responses", json={"model": MODEL, "input": script(parts)})
        assert answer.status_code == 500
        assert "generated no token for 0.2 seconds" in answer.json()["error"]["message"]
        with client.stream(
            "POST", "/responses", json={"model": MODEL, "input": script(parts), "stream": True}
        ) as stream:
            event = frames(stream.read().decode())[-1]
        assert event["type"] == "response.failed"
        assert written in json.dumps(event["response"]["output"])
        wait_until(lambda: server.engine(MODEL).running == 0)


def test_a_slow_but_steady_engine_is_no_stall(serve: Any) -> None:
    with serve(between_tokens_s=0.2) as server, httpx.Client(base_url=server.api) as client:
        parts = [{"say": "a " * 30, "tick": 0.02}]
        assert create(client, model=MODEL, input=script(parts))["status"] == "completed"


def test_no_more_background_responses_wait_than_may(serve: Any) -> None:
    body = {"model": MODEL, "input": script({"hang": 30}), "background": True}
    with (
        serve(store="sqlite", background_runs=1, max_waiting=3) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
        ThreadPoolExecutor(20) as threads,
    ):
        sent = [threads.submit(client.post, "/responses", json=body) for _ in range(20)]
        statuses = Counter(each.result().status_code for each in sent)
    assert statuses == {200: 4, 429: 16}
