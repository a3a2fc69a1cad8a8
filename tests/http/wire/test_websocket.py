"""Responses over one WebSocket connection, on the real socket and both scripted models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, wait_until
from tests.http.wire.websocket_client import LAST, Client, url_of
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


def joined(server: Any, model: str = "scripted-chat") -> Client:
    connection = connect(url_of(server), max_size=None, compression=None, proxy=None)
    return Client(connection.__enter__(), model)  # each test ends it in its own way


@pytest.fixture
def client(server: Any, model: str) -> Iterator[Client]:
    found = joined(server, model)
    with found.connection:
        yield found


@pytest.fixture
def joining() -> Iterator[Callable[..., Client]]:
    """Connect to a server of the test's own."""
    opened: list[Client] = []

    def join(server: Any, model: str = "scripted-chat") -> Client:
        opened.append(joined(server, model))
        return opened[-1]

    yield join
    for each in opened:
        each.connection.close()


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part.get("text", "") for part in parts)


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        volatile = ("id", "item_id", "call_id", "created_at", "completed_at", "cached_tokens")
        return {k: without_ids(v) for k, v in value.items() if not k.startswith(volatile)}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


# --- the same events ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [{}, {"stream": True}])
def test_the_events_are_those_of_the_http_stream(
    client: Client, http: httpx.Client, frames: Any, stream: dict[str, bool]
) -> None:
    asked = script([{"think": "hm"}, {"say": "hello world"}])
    client.ask(asked, **stream)
    events = client.until(*LAST)
    body = {"model": client.model, "input": asked, "stream": True}
    streamed = frames(http.post("/responses", json=body).text)
    assert without_ids(events) == without_ids(streamed)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_stored_response_is_retrieved_over_http(client: Client, http: httpx.Client) -> None:
    response = client.turn()
    assert http.get(f"/responses/{response['id']}").json() == response


def test_each_response_has_its_own_numbers(client: Client) -> None:
    for _ in range(2):
        client.ask()
        assert client.until(*LAST)[0]["sequence_number"] == 0


def test_a_run_that_fails_ends_with_a_nested_error_and_a_failed_response(client: Client) -> None:
    client.ask(script([{"say": "Once"}, {"fail": "server_error"}]), stream_id="a")
    *_, error, failed = client.until(*LAST)
    assert error["error"]["code"] == "server_error"
    assert error["error"]["type"] == "server_error"
    assert "status" not in error
    assert error["sequence_number"] == failed["sequence_number"] - 1
    assert failed["type"] == "response.failed"
    assert (error["stream_id"], failed["stream_id"]) == ("a", "a")
    assert client.turn()["status"] == "completed"


# --- continuing -----------------------------------------------------------------------------------


def test_an_unstored_tool_call_is_answered_on_the_same_connection(client: Client) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    asked = script({"call": "f", "args": {}}, {"say": "done"})
    first = client.turn(asked, store=False, tools=[tool])
    call_id = first["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "1"}
    second = client.turn([output], store=False, tools=[tool], previous_response_id=first["id"])
    assert text_of(second) == "done"
    assert second["previous_response_id"] == first["id"]


def test_an_unstored_chain_renders_what_a_stored_one_renders(client: Client) -> None:
    counts = []
    for store in (True, False):
        parent, found = None, []
        for text in ("one", "two", "three"):
            response = client.turn(text, store=store, previous_response_id=parent)
            parent = response["id"]
            found.append(response["usage"]["input_tokens"])
        counts.append(found)
    assert counts[0] == counts[1]
    assert counts[0] == sorted(set(counts[0]))


def test_an_unstored_response_is_lost_with_the_connection(server: Any, model: str) -> None:
    with joined(server, model).connection as connection:
        response_id = Client(connection, model).turn(store=False)["id"]
    with joined(server, model).connection as connection:
        again = Client(connection, model)
        refused = again.refusal(store=False, previous_response_id=response_id)
        assert refused["code"] == "previous_response_not_found"
        assert refused["param"] == "previous_response_id"
        assert again.turn()["status"] == "completed"


def test_only_the_latest_unstored_response_of_a_lane_is_continued(client: Client) -> None:
    first = client.turn(store=False)
    second = client.turn(store=False)
    refused = client.refusal(store=False, previous_response_id=first["id"])
    assert refused["code"] == "previous_response_not_found"
    assert client.turn(store=False, previous_response_id=second["id"])["status"] == "completed"


def test_stored_responses_are_continued_however_old(client: Client) -> None:
    first = client.turn()
    client.turn()
    assert client.turn(previous_response_id=first["id"])["status"] == "completed"


UNANSWERED = [{"type": "function_call_output", "call_id": "call_none", "output": "x"}]


def test_a_failed_continuation_evicts_and_a_failed_fork_does_not(client: Client) -> None:
    parent = client.turn(store=False, stream_id="a")["id"]
    continued = {"store": False, "previous_response_id": parent}
    client.refusal(UNANSWERED, stream_id="b", **continued)
    fork = client.turn(stream_id="b", **continued)
    assert fork["status"] == "completed"
    client.refusal(UNANSWERED, stream_id="a", **continued)
    refused = client.refusal(stream_id="a", **continued)
    assert refused["code"] == "previous_response_not_found"


def test_a_continuation_that_fails_while_it_runs_evicts_too(client: Client) -> None:
    parent = client.turn(store=False)["id"]
    asked = script({"fail": "server_error"})
    assert client.turn(asked, store=False, previous_response_id=parent)["status"] == "failed"
    refused = client.refusal(store=False, previous_response_id=parent)
    assert refused["code"] == "previous_response_not_found"


def test_a_lane_without_a_previous_response_starts_a_new_conversation(client: Client) -> None:
    first = client.turn("same words", store=False, stream_id="a")
    second = client.turn("same words", store=False, stream_id="a")
    assert first["usage"]["input_tokens"] == second["usage"]["input_tokens"]


def test_a_stored_response_shows_the_unstored_ones_it_continues(
    client: Client, http: httpx.Client
) -> None:
    first = client.turn("one", store=False)
    second = client.turn("two", previous_response_id=first["id"])
    listed = http.get(f"/responses/{second['id']}/input_items", params={"order": "asc"}).json()
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]
    body = {"model": client.model, "input": "three", "previous_response_id": second["id"]}
    assert create(http, **body)["usage"]["input_tokens"] > second["usage"]["input_tokens"]


# --- lanes ----------------------------------------------------------------------------------------


def test_every_event_bears_its_lane_if_it_has_one(client: Client) -> None:
    for fields in ({"stream_id": "a.B_c-1"}, {}):
        client.ask(**fields)
        events = client.until(*LAST)
        assert {event.get("stream_id") for event in events} == {fields.get("stream_id")}
        assert client.refusal(**{**fields, "temperature": 9})["param"] == "temperature"


def test_lanes_run_at_the_same_time(client: Client) -> None:
    client.ask(script([{"hang": 30}]), stream_id="slow", store=False)
    assert client.until("response.in_progress")
    assert client.turn(stream_id="quick")["status"] == "completed"


def test_one_lane_runs_one_after_the_other(client: Client) -> None:
    for n in range(4):
        client.ask(script({"say": f"number {n}"}), stream_id="a")
    ends = [client.until(*LAST) for _ in range(4)]
    assert [text_of(events[-1]["response"]) for events in ends] == [
        "number 0",
        "number 1",
        "number 2",
        "number 3",
    ]
    for events in ends:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_waiting_request_may_continue_the_one_it_waits_for(client: Client) -> None:
    client.ask(script({"say": "x ", "repeat": 30, "tick": 0.005}), store=False)
    parent = client.until("response.created")[-1]["response"]["id"]
    client.ask("and now", store=False, previous_response_id=parent)
    assert client.until(*LAST)[-1]["response"]["id"] == parent
    assert client.until(*LAST)[-1]["response"]["previous_response_id"] == parent


def test_the_seventeenth_waits(serve: Any, joining: Any) -> None:
    with serve() as server:
        client, engine = joining(server), server.engine("scripted-chat")
        for n in range(16):
            client.ask(script({"hang": 2.5}, {"say": "x"}), stream_id=f"lane{n}", store=False)
        wait_until(lambda: engine.running == 16)
        client.ask("quick", stream_id="seventeenth", store=False)
        events = client.until(*LAST)
        assert {event["stream_id"] for event in events} <= {f"lane{n}" for n in range(16)}
        assert sum(event["type"] == "response.created" for event in events) == 16
        seen = [client.until(*LAST)[-1]["stream_id"] for _ in range(16)]
        assert "seventeenth" in seen


def test_a_thirty_third_lane_is_refused(client: Client) -> None:
    for n in range(32):
        client.turn(stream_id=f"lane{n}", store=False)
    refused = client.refusal(stream_id="one-too-many")
    assert refused["code"] == "websocket_stream_limit_reached"
    assert client.turn()["status"] == "completed"
    assert client.turn(stream_id="lane0")["status"] == "completed"


def test_more_than_may_wait_is_told_to_come_later(client: Client) -> None:
    client.ask(script({"hang": 30}), stream_id="a", store=False)
    client.until("response.in_progress")
    for _ in range(65):
        client.ask(stream_id="a", store=False)
    event = client.error()
    assert (event["status"], event["stream_id"]) == (429, "a")
    assert event["error"]["type"] == "rate_limit_error"
    assert client.turn(stream_id="b")["status"] == "completed"


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, 7, ["a"]])
def test_a_wrong_stream_id_is_refused(client: Client, name: Any) -> None:
    client.ask(stream_id=name)
    event = client.error()
    assert event["error"]["code"] == "invalid_stream_id"
    assert "stream_id" not in event


# --- wrong messages -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{oops", None),
        ("", None),
        ("[]", None),
        ('"text"', None),
        ("null", None),
        ("{}", "type"),
        ('{"type": null}', "type"),
        ('{"type": "response.cancel"}', "type"),
        ('{"type": ["response.create"]}', "type"),
        ('{"type": "response.create"}', "model"),
        ('{"type": "response.create", "model": "scripted"}', "input"),
        ('{"type": "response.create", "model": "scripted", "input": 5}', "input"),
        ('{"type": "response.create", "model": "nope", "input": "x"}', "model"),
        ('{"type": "response.create", "model": "scripted", "input": "\\ud800"}', None),
        ('{"type": "response.create", "model": "m", "messages": []}', "messages"),
        ('{"type": "response.create", "input": ' + "[" * 100 + "]" * 100 + "}", None),
        ('{"type": "response.create", "input": [' + "1," * 200_000 + "1]}", None),
        ('{"type": "response.steer"}', "previous_response_id"),
        ('{"type": "response.steer", "previous_response_id": "r"}', "input"),
    ],
)
def test_a_wrong_message_is_an_error_and_the_next_is_answered(
    client: Client, message: str, param: str | None
) -> None:
    client.connection.send(message)
    event = client.error()
    assert event["status"] == 400
    assert event["error"]["type"] == "invalid_request_error"
    assert event["error"]["param"] == param
    assert isinstance(event["error"]["code"], str)
    assert client.turn()["status"] == "completed"


def test_a_binary_frame_is_refused(client: Client) -> None:
    client.connection.send(b'{"type": "response.create"}')
    assert "binary" in client.error()["error"]["message"]
    assert client.turn()["status"] == "completed"


def test_background_runs_are_for_http(client: Client) -> None:
    assert client.refusal(background=True)["param"] == "background"
    assert client.turn(background=False)["status"] == "completed"


def test_errors_are_those_of_http(client: Client, http: httpx.Client) -> None:
    wrong: list[dict[str, Any]] = [
        {"input": UNANSWERED},
        {"temperature": 7},
        {"tools": [{"type": "function"}]},
        {"previous_response_id": "resp_none"},
        {"max_output_tokens": 0},
    ]
    for fields in wrong:
        asked = {"input": "hi", **fields}
        client.send(type="response.create", model=client.model, **asked)
        event = client.error()
        answer = http.post("/responses", json={"model": client.model, **asked})
        over_http = answer.json()["error"]
        assert event["status"] == answer.status_code
        code = over_http["code"] or "invalid_request_error"  # which must be there on a WebSocket
        assert event["error"] == {**over_http, "code": code}


def test_a_dead_engine_says_when_to_come_again(serve: Any, joining: Any) -> None:
    with serve() as server:
        client = joining(server)
        assert client.turn(script({"die": True}))["status"] == "failed"
        client.ask()
        event = client.error()
        assert event["status"] == 503
        assert event["error"]["headers"] == {"retry-after": "1"}


def test_a_strict_server_knows_the_fields_of_messages(serve: Any, joining: Any) -> None:
    with serve(strict_unknown_fields=True) as server:
        client = joining(server)
        assert client.turn(stream_id="a")["status"] == "completed"
        refused = client.refusal(made_up=1)
        assert (refused["code"], refused["param"]) == ("unknown_parameter", "made_up")


# --- warm-up --------------------------------------------------------------------------------------

WARM: list[dict[str, Any]] = [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}]


@pytest.mark.parametrize("warm", WARM)
@pytest.mark.parametrize("store", [True, False])
def test_a_warm_up_generates_nothing_and_is_continued_without_input(
    client: Client, warm: dict[str, Any], store: bool
) -> None:
    asked = script({"say": "warmed"}) + f" {warm} {store} " + "padding " * 50
    client.ask(asked, store=store, instructions="Be brief.", **warm)
    events = client.until(*LAST)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    warmed = events[-1]["response"]
    assert warmed["status"] == "completed"
    assert warmed["output"] == []
    assert warmed["usage"]["output_tokens"] == 0
    assert warmed["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
    assert warmed["usage"]["input_tokens"] > 50
    continued = {"store": store, "instructions": "Be brief."}
    client.send(
        type="response.create",
        model=client.model,
        previous_response_id=warmed["id"],
        **continued,
    )
    last = client.until(*LAST)[-1]["response"]
    assert text_of(last) == "warmed"
    assert last["usage"]["input_tokens"] == warmed["usage"]["input_tokens"]
    assert last["usage"]["input_tokens_details"]["cached_tokens"] > 50


def test_a_warm_up_may_have_empty_input(client: Client) -> None:
    warmed = client.turn([], store=False, generate=False, instructions="Be brief.", stream_id="a")
    assert warmed["output"] == []
    asked = {"store": False, "previous_response_id": warmed["id"], "stream_id": "a"}
    assert text_of(client.turn("2+2?", **asked)) == "Echo: 2+2?"
    assert client.refusal("again", **asked)["code"] == "previous_response_not_found"


def test_a_warm_up_over_http_is_continued_without_input(
    http: httpx.Client, model: str, frames: Any
) -> None:
    body = {"model": model, "prompt_cache_options": {"prewarm": True, "ttl": "30m"}}
    warmed = create(http, input=script({"say": "warmed"}), **body)
    assert (warmed["status"], warmed["output"]) == ("completed", [])
    assert warmed["usage"]["output_tokens"] == 0
    assert warmed["prompt_cache_options"] == {"mode": "implicit", "ttl": "30m"}
    continued = {"model": model, "previous_response_id": warmed["id"]}
    for given in ({}, {"input": []}):
        assert text_of(create(http, **continued, **given)) == "warmed"
    streamed = frames(http.post("/responses", json={**body, "input": "x", "stream": True}).text)
    assert [event["type"] for event in streamed][-1] == "response.completed"
    assert len(streamed) == 3


def test_a_wrong_warm_up_is_refused_as_the_real_request_would_be(client: Client) -> None:
    assert client.refusal(generate=False, temperature=9)["param"] == "temperature"
    wrong = client.refusal(prompt_cache_options={"prewarm": "yes"})
    assert wrong["param"] == "prompt_cache_options.prewarm"
    assert client.refusal(generate="no")["param"] == "generate"
    client.send(type="response.create", model=client.model, generate=False)
    assert client.error()["error"]["param"] == "input"


# --- connections ----------------------------------------------------------------------------------


def test_a_message_over_the_size_of_a_body_closes_the_connection(serve: Any, joining: Any) -> None:
    with serve(max_body_bytes=4096) as server:
        client = joining(server)
        assert client.turn("x" * 3000)["status"] == "completed"
        client.ask("x" * 5000)
        with pytest.raises(ConnectionClosed) as closed:
            client.event()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert joining(server).turn()["status"] == "completed"


def test_an_open_connection_may_outlast_the_time_for_requests(serve: Any, joining: Any) -> None:
    with serve(arrival_s=1) as server:
        client = joining(server)
        assert client.turn(script([{"hang": 1.5}, {"say": "late"}]))["status"] == "completed"
        assert client.turn()["status"] == "completed"


def test_when_the_time_is_up_what_runs_ends_and_the_client_is_told(
    serve: Any, joining: Any
) -> None:
    with serve(websocket_s=1.5) as server:
        client = joining(server)
        client.ask(script([{"hang": 3}, {"say": "late"}]), stream_id="a")
        client.ask("never", stream_id="a")
        events = client.until("error")
        waited = events[-1]
        assert waited["stream_id"] == "a"
        assert waited["error"]["code"] == "websocket_connection_limit_reached"
        client.ask("too late", stream_id="b")
        assert client.error()["stream_id"] == "b"
        assert text_of(client.until(*LAST)[-1]["response"]) == "late"
        last = client.error()
        assert (last["status"], last.get("stream_id")) == (400, None)
        assert last["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(ConnectionClosed) as closed:
            client.event()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_a_connection_is_told_in_its_dialect_and_padded_on_request(server: Any, model: str) -> None:
    connection = connect(
        url_of(server), additional_headers={"x-antiphon-dialect": "open-responses"}, proxy=None
    )
    with connection:
        client = Client(connection, model)
        client.ask(
            script([{"think": "one two"}, {"say": "three"}]),
            stream_options={"include_obfuscation": True},
        )
        events = client.until(*LAST)
        assert client.refusal(temperature=9)["type"] == "invalid_request"
    types = [event["type"] for event in events]
    assert "response.reasoning.delta" in types
    assert "response.reasoning_text.delta" not in types
    deltas = [event for event in events if event["type"].endswith(".delta")]
    assert all(event["obfuscation"] for event in deltas)
