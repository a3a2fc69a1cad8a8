"""What a guard refuses is shown by no door, whole or streamed, to no reader, and not later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from tests.http.conftest import frames, script, wait_until
from tests.http.guards.conftest import SAID, ServeGuarded
from tests.http.guards.odd_guards import MESSAGE, WORD
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

Json = dict[str, Any]

SHOWN = "I know that"
"""The start of the text, which may be shown before the guard has seen the word."""


@pytest.fixture(scope="module", params=["refuse", "stop", "mask"])
def does(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(serve_guarded: ServeGuarded, does: str) -> Iterator[Any]:
    with serve_guarded(does, "output", "tool_call", keep_traces="all") as served:
        yield served


@pytest.fixture
def guarded(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30) as client:
        yield client


def user(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


DOORS: Mapping[str, tuple[str, Callable[[str, str], Json]]] = {
    "responses": ("/responses", lambda model, text: {"model": model, "input": text}),
    "chat": ("/chat/completions", lambda model, text: {"model": model, "messages": user(text)}),
    "messages": (
        "/messages",
        lambda model, text: {"model": model, "messages": user(text), "max_tokens": 500},
    ),
    "completions": (
        "/completions",
        lambda model, text: {"model": model, "prompt": text, "max_tokens": 500},
    ),
}


def plain(text: str) -> str:
    """Return a body with the pieces of its texts joined, as a reader sees them."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        for each in value.values() if isinstance(value, dict) else ():
            walk(each)
        for each in value if isinstance(value, list) else ():
            walk(each)

    for line in text.splitlines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            body = json.loads(data)
            walk([body.get(name) for name in ("delta", "choices")] if line != data else body)
    return "".join(found)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("part", ["say", "think", "args"])
def test_no_door_shows_the_word(
    guarded: httpx.Client, model: str, door: str, part: str, is_streamed: bool, does: str
) -> None:
    path, body_of = DOORS[door]
    turn: Json = {"call": "f", "args": {"a": SAID}} if part == "args" else {part: SAID}
    turns = [[turn]] if part != "think" else [[turn, {"say": "Well."}]]
    body = body_of(model, script(*turns))
    if part == "args" and door == "completions":
        return
    if part == "args":
        function = {"name": "f", "parameters": {"type": "object"}}
        body["tools"] = {
            "responses": [{"type": "function", **function}],
            "chat": [{"type": "function", "function": function}],
            "messages": [{"name": "f", "input_schema": {"type": "object"}}],
        }[door]
    answer = guarded.post(path, json={**body, "stream": is_streamed})
    assert answer.status_code == 200, answer.text
    text = answer.text.replace(json.dumps(script(*turns))[1:-1], "")
    assert WORD not in text
    assert WORD not in plain(text)


@pytest.mark.parametrize("door", DOORS)
def test_each_door_says_how_it_ended(
    guarded: httpx.Client, model: str, door: str, does: str
) -> None:
    path, body_of = DOORS[door]
    answer = guarded.post(path, json=body_of(model, script({"say": SAID}))).json()
    choice = answer.get("choices", [{}])[0]
    shown = {
        "responses": lambda: (answer["status"], answer.get("incomplete_details")),
        "chat": lambda: (choice["finish_reason"], choice["message"]["refusal"]),
        "messages": lambda: answer["stop_reason"],
        "completions": lambda: choice["finish_reason"],
    }[door]()
    assert (
        shown
        == {
            ("responses", "refuse"): ("completed", None),
            ("responses", "stop"): ("incomplete", {"reason": "content_filter"}),
            ("responses", "mask"): ("completed", None),
            ("chat", "refuse"): ("stop", MESSAGE),
            ("chat", "stop"): ("content_filter", None),
            ("chat", "mask"): ("stop", None),
            ("messages", "refuse"): "refusal",
            ("messages", "stop"): "refusal",
            ("messages", "mask"): "end_turn",
            ("completions", "refuse"): "stop",
            ("completions", "stop"): "content_filter",
            ("completions", "mask"): "stop",
        }[door, does]
    )


def test_a_websocket_shows_what_has_passed(server: Any, model: str, does: str) -> None:
    url = server.api.replace("http", "ws", 1) + "/responses"
    with connect(url) as socket:
        body = {"model": model, "input": script({"say": SAID}), "store": False}
        socket.send(json.dumps({"type": "response.create", **body}))
        received: list[Json] = []
        while not received or received[-1]["type"] not in (
            "response.completed",
            "response.incomplete",
            "response.failed",
            "error",
        ):
            received.append(json.loads(socket.recv(timeout=20)))
    assert received[-1]["type"] == (
        "response.incomplete" if does == "stop" else "response.completed"
    )
    assert WORD not in json.dumps(received)
    texts = "".join(event["delta"] for event in received if "delta" in event)
    assert WORD not in texts
    assert texts.startswith(SHOWN)


def test_a_stream_that_is_read_again_shows_the_same(
    guarded: httpx.Client, model: str, does: str
) -> None:
    body = {"model": model, "input": script({"say": SAID}), "background": True, "stream": True}
    first = frames(guarded.post("/responses", json=body).text)
    response_id = first[0]["response"]["id"]
    again = guarded.get(f"/responses/{response_id}", params={"stream": True, "starting_after": 3})
    assert [event["sequence_number"] for event in frames(again.text)] == [
        event["sequence_number"] for event in first[4:]
    ]
    stored = guarded.get(f"/responses/{response_id}").text
    explained = guarded.get(f"/responses/{response_id}/explain").json()
    turns = [
        {name: turn.get(name) for name in ("output", "output_token_ids", "batches", "calls")}
        for turn in explained["turns"]
    ]
    assert turns, "the server keeps traces"
    explained["response"]["preview"].pop("input")
    for shown in (first, again.text, stored, explained["events"], explained["response"], turns):
        assert WORD not in json.dumps(shown)
    texts = "".join(event["delta"] for event in first if "delta" in event)
    assert WORD not in texts
    assert texts.startswith(SHOWN)


def test_a_line_of_a_batch_is_guarded(guarded: httpx.Client, model: str, does: str) -> None:
    body = {"model": model, "input": script({"say": SAID})}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    file = {"file": ("lines.jsonl", json.dumps(line).encode())}
    uploaded = guarded.post("/files", files=file, data={"purpose": "batch"}).json()
    batch = guarded.post(
        "/batches",
        json={
            "input_file_id": uploaded["id"],
            "endpoint": "/v1/responses",
            "completion_window": "24h",
        },
    ).json()
    path = f"/batches/{batch['id']}"
    wait_until(lambda: guarded.get(path).json()["status"] == "completed")
    output = guarded.get(f"/files/{guarded.get(path).json()['output_file_id']}/content").text
    assert json.loads(output)["response"]["status_code"] == 200
    assert WORD not in output


def test_a_text_that_passes_is_the_same_as_without_a_guard(
    guarded: httpx.Client, http: httpx.Client, model: str
) -> None:
    said = "This text has no such word, and it is long enough for some windows." * 3
    body = {"model": model, "input": script([{"think": said}, {"say": said}]), "stream": True}
    streams = [frames(client.post("/responses", json=body).text) for client in (guarded, http)]
    shown = [
        [(event["type"], event.get("delta"), event.get("text")) for event in stream]
        for stream in streams
    ]
    assert shown[0] == shown[1]
