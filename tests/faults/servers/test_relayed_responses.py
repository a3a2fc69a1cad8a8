"""A response runs at the server that has its container, whichever server gets the request."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.container_servers import KEYS, call, container_servers, new_container
from tests.faults.support.replicas import MODEL, Replica, wait_for
from tests.http.wire.websocket_client import Client
from websockets.sync.client import connect

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

Json = dict[str, Any]

SHOW = '@@script [[{"call": "python", "args": {"code": "print(secret)"}}], [{"say": "ok"}]]'
SET = SHOW.replace("print(secret)", "secret = 42")
SLOW = SHOW.replace('{"say": "ok"}', '{"say": "word ", "repeat": 40, "tick": 0.05}')
IN_SHELL = '@@script [[{"call": "shell", "args": {"commands": ["cat note"]}}], [{"say": "ok"}]]'


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Replica]]:
    with container_servers(tmp_path) as started:
        yield started


def code_in(container: str | Json) -> Json:
    return {"type": "code_interpreter", "container": container}


def shell_in(container: str) -> Json:
    return {
        "type": "shell",
        "environment": {"type": "container_reference", "container_id": container},
    }


def body(prompt: str, tool: Json | None = None, **fields: Any) -> Json:
    tools = {"tools": [tool]} if tool is not None else {}
    return {"model": MODEL, "input": prompt, **tools, **fields}


def respond(server: Replica, prompt: str, tool: Json, **fields: Any) -> Json:
    answer = call(server, "POST", "responses", json=body(prompt, tool, **fields))
    assert answer.status_code == 200, answer.text
    response: Json = answer.json()
    return response


def logs_of(response: Json) -> str:
    [made] = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    return "".join(output["logs"] for output in made["outputs"] or ())


def with_secret(server: Replica) -> str:
    """Return a new container whose Python has the variable `secret`."""
    container = new_container(server)
    respond(server, SET, code_in(container))
    return container


INCLUDE = {"include": ["code_interpreter_call.outputs"]}


def test_code_runs_in_the_named_container_of_the_other_server(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    response = respond(second, SHOW, code_in(container), **INCLUDE)
    assert response["status"] == "completed"
    assert logs_of(response) == "42\n"
    for server in pair:  # it is stored for all of them
        assert call(server, "GET", f"responses/{response['id']}").json()["id"] == response["id"]


def test_the_shell_runs_in_the_referenced_container_of_the_other_server(
    pair: list[Replica],
) -> None:
    first, second = pair
    container = new_container(first)
    note = {"file": ("note", b"hello\n")}
    assert call(first, "POST", f"containers/{container}/files", files=note).status_code == 200
    response = respond(second, IN_SHELL, shell_in(container))
    [output] = [item for item in response["output"] if item["type"] == "shell_call_output"]
    assert output["output"][0]["stdout"] == "hello\n"


def test_a_tool_that_an_item_brings_may_name_the_container_too(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    brought = {"type": "additional_tools", "role": "developer", "tools": [code_in(container)]}
    said = {"type": "message", "role": "user", "content": SHOW}
    asked = {**body(SHOW), "input": [brought, said], **INCLUDE}
    answer = call(second, "POST", "responses", json=asked)
    assert answer.status_code == 200, answer.text
    assert logs_of(answer.json()) == "42\n"


def test_a_conversation_goes_on_in_its_container_at_the_other_server(pair: list[Replica]) -> None:
    first, second = pair
    automatic = code_in({"type": "auto"})
    begun = respond(first, SET, automatic)
    for server in (second, first):
        previous = {"previous_response_id": begun["id"], **INCLUDE}
        assert logs_of(respond(server, SHOW, automatic, **previous)) == "42\n"


def test_a_stream_passes_through_the_other_server_as_it_is_made(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    asked = body(SLOW, code_in(container), stream=True)
    headers = {"authorization": f"Bearer {KEYS['anna']}"}
    url = f"{second.api}/responses"
    arrived: list[float] = []
    events: list[Json] = []
    with httpx.stream("POST", url, json=asked, headers=headers, timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
                arrived.append(time.monotonic())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert arrived[-1] - arrived[0] > 1, "the words came one by one"
    whole = call(second, "GET", f"responses/{events[-1]['response']['id']}").json()
    assert whole["output"] == events[-1]["response"]["output"]


def test_a_background_response_runs_where_its_container_is(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    made = respond(second, SHOW, code_in(container), background=True, **INCLUDE)
    url = f"responses/{made['id']}?include[]=code_interpreter_call.outputs"

    def ended() -> Json | None:
        found: Json = call(second, "GET", url).json()
        return found if found["status"] not in ("queued", "in_progress") else None

    assert logs_of(wait_for(ended)) == "42\n"


def test_a_background_response_waits_for_no_server_that_lacks_its_container(
    tmp_path: Path,
) -> None:
    with container_servers(tmp_path, "--background-runs", "1") as (first, second):
        container = with_secret(first)
        hang = '@@script [[{"say": "word "}, {"hang": 60}]]'
        running = call(first, "POST", "responses", json=body(hang, background=True)).json()
        asked = body(SHOW, code_in(container), background=True)
        answer = call(second, "POST", "responses", json=asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        call(second, "POST", f"responses/{running['id']}/cancel")
        wait_for(lambda: call(second, "POST", "responses", json=asked).status_code == 200 or None)


def test_a_client_that_leaves_ends_the_run_at_the_other_server(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    asked = body(SLOW.replace("40", "4000"), code_in(container), stream=True)
    headers = {"authorization": f"Bearer {KEYS['anna']}"}
    with httpx.stream(
        "POST", f"{second.api}/responses", json=asked, headers=headers, timeout=30
    ) as answer:
        lines = answer.iter_lines()
        created = next(json.loads(line[6:]) for line in lines if line.startswith("data: {"))
        next(line for line in lines if "output_text.delta" in line)
    url = f"responses/{created['response']['id']}"
    wait_for(lambda: call(first, "GET", url).json()["status"] == "cancelled" or None)


def test_a_repeated_request_with_an_idempotency_key_runs_once(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    key = {"idempotency-key": "one"}
    asked = body(SHOW, code_in(container))
    answers = [
        call(server, "POST", "responses", json=asked, headers=key)
        for server in (second, first, second)
    ]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [
        None,
        "true",
        "true",
    ]


def test_a_large_request_arrives_whole_at_the_other_server(tmp_path: Path) -> None:
    limits = ("--max-body-bytes", str(24 * 1024**2), "--max-file-bytes", str(1024**2))
    with container_servers(tmp_path, *limits) as (first, second):
        container = new_container(first)
        long = "word " * (4 * 1024**2)
        counted = [
            call(each, "POST", "responses/input_tokens", json=body(long, code_in(container)))
            for each in (first, second)
        ]
        answers = [(answer.status_code, answer.content) for answer in counted]
        assert answers[0] == answers[1]


def test_tokens_are_counted_and_conversations_compacted_at_the_other_server(
    pair: list[Replica],
) -> None:
    container = new_container(pair[0])
    asked = body("hello", code_in(container))
    counts = [call(each, "POST", "responses/input_tokens", json=asked).json() for each in pair]
    assert counts[0] == counts[1]
    assert counts[0]["input_tokens"] > 0
    answer = call(pair[1], "POST", "responses/compact", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "response.compaction"
    assert answer.headers["x-antiphon-server"] in container, "a balancer may read where it ran"


def test_errors_of_the_other_server_arrive_as_they_are(pair: list[Replica]) -> None:
    first, second = pair
    container = new_container(first)
    asked = body("hello", code_in(container), max_tool_calls=-1)
    answer = call(second, "POST", "responses", json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tool_calls")
    foreign = body("hello", code_in(container))
    answer = call(second, "POST", "responses", json=foreign, tenant="ben")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (404, "tools[0].container")
    gone = body("hello", code_in(f"{container[:-4]}0000"))
    answer = call(second, "POST", "responses", json=gone)
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "tools[0].container")


def test_the_container_of_a_dead_server_is_an_error_that_names_the_field(
    pair: list[Replica],
) -> None:
    first, second = pair
    container = new_container(first)
    automatic = code_in({"type": "auto"})
    begun = respond(first, SET, automatic)
    first.kill()
    for tool, param in (
        (code_in(container), "tools[0].container"),
        (shell_in(container), "tools[0].environment.container_id"),
    ):
        for more in ({}, {"stream": True}, {"background": True}):
            answer = call(second, "POST", "responses", json=body("hi", tool, **more))
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (404, param), answer.text
            assert error["code"] == "container_unreachable"
            assert "the container and its files are lost" in error["message"]
    # A conversation that named none goes on, and the model is told.
    followed = respond(second, SHOW, automatic, previous_response_id=begun["id"], **INCLUDE)
    assert "variables and files are lost" in logs_of(followed)


def test_the_container_of_a_server_that_was_stopped_is_unknown(pair: list[Replica]) -> None:
    first, second = pair
    container = new_container(first)
    first.stop()
    answer = call(second, "POST", "responses", json=body("hi", code_in(container)))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (404, "tools[0].container")
    assert "lost with its server" in error["message"]


def test_a_server_that_is_stopping_gets_no_new_responses(tmp_path: Path) -> None:
    with container_servers(tmp_path, "--drain-delay-s", "60") as (first, second):
        container = with_secret(first)
        automatic = code_in({"type": "auto"})
        begun = respond(first, SET, automatic)
        first.signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{first.url}/readyz").status_code == 503 or None)
        named = call(second, "POST", "responses", json=body(SHOW, code_in(container)))
        assert (named.status_code, named.json()["error"]["param"]) == (404, "tools[0].container")
        followed = respond(second, SHOW, automatic, previous_response_id=begun["id"], **INCLUDE)
        assert "variables and files are lost" in logs_of(followed)
        kept = call(second, "GET", f"containers/{container}")
        assert kept.status_code == 200, "what is there can be fetched until the end"


def test_a_server_that_dies_breaks_the_streams_that_it_had_relayed_to_it(
    pair: list[Replica],
) -> None:
    first, second = pair
    container = with_secret(first)
    asked = body(SLOW.replace("40", "4000"), code_in(container), stream=True)
    headers = {"authorization": f"Bearer {KEYS['anna']}"}
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream(
            "POST", f"{second.api}/responses", json=asked, headers=headers, timeout=30
        ) as answer,
    ):
        lines = answer.iter_lines()
        next(line for line in lines if "output_text.delta" in line)
        first.kill()
        list(lines)
    assert call(second, "GET", "containers").status_code == 200


def test_a_server_that_stops_waits_for_what_it_relays(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    ends: list[str] = []
    begun = threading.Event()

    def read() -> None:
        headers = {"authorization": f"Bearer {KEYS['anna']}"}
        asked = body(SLOW, code_in(container), stream=True)
        url = f"{second.api}/responses"
        with httpx.stream("POST", url, json=asked, headers=headers, timeout=30) as answer:
            for line in answer.iter_lines():
                if "output_text.delta" in line:
                    begun.set()
                if line.startswith("event: "):
                    ends.append(line)

    reading = threading.Thread(target=read)
    reading.start()
    assert begun.wait(30)
    second.signal(signal.SIGTERM)
    reading.join(timeout=60)
    assert ends[-1] == "event: response.completed"
    assert second.process is not None
    assert second.process.wait(timeout=30) == 0


def test_a_websocket_says_that_the_container_is_at_another_server(pair: list[Replica]) -> None:
    first, second = pair
    container = with_secret(first)
    url = f"{second.api.replace('http', 'ws', 1)}/responses"
    headers = {"authorization": f"Bearer {KEYS['anna']}"}
    with connect(url, additional_headers=headers) as connection:
        client = Client(connection)
        client.ask(SHOW, tools=[code_in(container)])
        event = client.error()
        assert event["status"] == 409
        error = event["error"]
        assert (error["code"], error["param"]) == (
            "container_at_another_server",
            "tools[0].container",
        )
        assert "over HTTP" in error["message"]
        assert client.turn("hi")["status"] == "completed", "the connection goes on"


def test_a_relayed_request_counts_once(tmp_path: Path) -> None:
    limits = 'limits = { "requests/min" = 3, "tokens/min" = 100000, "runs" = 1 }\n'
    with container_servers(tmp_path, limits=limits) as (first, second):
        container = new_container(first)
        asked = body("hello", code_in(container))
        answers = [call(second, "POST", "responses", json=asked) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 200], answers[-1].text
        left = answers[0].headers["x-ratelimit-remaining-requests"]
        assert left in ("2", "3"), "3 if a minute has just begun"


def test_no_other_request_can_be_sent_as_relayed(pair: list[Replica]) -> None:
    for method, path in (
        ("POST", "conversations"),
        ("GET", "responses"),
        ("POST", "responses/resp_1/cancel"),
        ("POST", "containers"),
        ("GET", "files"),
    ):
        answer = httpx.request(method, f"{pair[0].api}/{path}", headers={"x-antiphon-relayed": "x"})
        assert answer.status_code == 400, (path, answer.text)
    answer = httpx.post(f"{pair[0].api}/responses", headers={"x-antiphon-relayed": "W10=.W10="})
    assert answer.status_code == 401
