"""Steering a running response over a WebSocket, on the real socket and both scripted models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.http.conftest import ROOT, script, text_of
from tests.http.wire import gated_tools
from tests.http.wire.websocket_client import LAST, Client, Event, url_of
from websockets.sync.client import connect

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy

pytestmark = pytest.mark.one_process

THINKS = script([{"think": "hm"}, {"hang": 0.5}, {"say": "never said"}])
WRITES = script({"say": "word ", "repeat": 20, "tick": 0.03})
FAILS = script([{"say": "Once"}, {"hang": 0.5}, {"fail": "server_error"}])
NEXT = script({"say": "Steered."})
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
CALLS = script([{"call": "f", "args": {}}, {"hang": 0.5}], {"say": "Called."})
GATED = {"type": "mcp", "server_label": "gated"}
STEER_EVENTS = tuple(f"response.steer.{kind}" for kind in ("accepted", "pending", "failed"))


class Steerer(Client):
    def begin(self, asked: str, until: str, **fields: Any) -> str:
        """Create a response, read up to an event, and return its id."""
        self.ask(asked, **fields)
        read = self.until(until)
        assert read[-1]["type"] == until, read[-1]
        return str(read[0]["response"]["id"])

    def steer(self, target: str, given: Any = NEXT, **fields: Any) -> Event:
        """Steer a response; return the answer, and keep the events before it."""
        self.send(type="response.steer", previous_response_id=target, input=given, **fields)
        return self.until(*STEER_EVENTS)[-1]

    def end(self) -> dict[str, Any]:
        """Return the response that ends next."""
        last = self.until(*LAST)[-1]
        assert last["type"] in LAST, last
        response: dict[str, Any] = last["response"]
        return response

    def successor(self) -> dict[str, Any]:
        """Return the next response, which begins now, with its end."""
        events = self.until(*LAST)
        assert events[0]["type"] == "response.created", events[0]
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        response: dict[str, Any] = events[-1]["response"]
        return response


@pytest.fixture(scope="module")
def server(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    given: dict[str, Any] = {"tool": ["tests.http.wire.gated_tools:GatedTools"], "store": "sqlite"}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        with serve_from(tmp_path_factory.mktemp("steering"), **given) as served:
            yield served


@contextmanager
def joined(server: Any, model: str = "scripted-chat", key: str = "") -> Iterator[Steerer]:
    headers = {"authorization": f"Bearer {key}"} if key else None
    url = url_of(server)
    with connect(url, max_size=None, proxy=None, additional_headers=headers) as connection:
        yield Steerer(connection, model)


@pytest.fixture
def client(server: Any, model: str) -> Iterator[Steerer]:
    with joined(server, model) as found:
        yield found


def said(http: httpx.Client, response: dict[str, Any]) -> list[str]:
    """Return what the user has said, up to a stored response."""
    url = f"/responses/{response['id']}/input_items"
    listed = http.get(url, params={"order": "asc"}).json()["data"]
    return [item["content"][0]["text"] for item in listed if item.get("role") == "user"]


# --- where a response stops -----------------------------------------------------------------------


@pytest.mark.parametrize("store", [True, False])
def test_a_response_stops_before_its_next_item_and_a_successor_follows(
    client: Steerer, http: httpx.Client, store: bool
) -> None:
    settings = {"instructions": "Be brief.", "metadata": {"a": "b"}, "max_output_tokens": 50}
    target = client.begin(THINKS, "response.reasoning_text.delta", store=store, **settings)
    accepted = client.steer(target)
    assert accepted["type"] == "response.steer.accepted"
    assert accepted["steer"]["id"].startswith("steer_")
    assert accepted["steer"] == {"id": accepted["steer"]["id"], "previous_response_id": target}
    assert "stream_id" not in accepted
    stopped = client.end()
    assert (stopped["id"], stopped["status"]) == (target, "incomplete")
    assert stopped["incomplete_details"] == {"reason": "steered"}
    assert [item["type"] for item in stopped["output"]] == ["reasoning"]
    assert stopped["output"][0].get("status", "completed") == "completed"
    assert stopped["usage"]["output_tokens"] > 0
    successor = client.successor()
    assert (successor["status"], text_of(successor)) == ("completed", "Steered.")
    assert successor["id"] != target
    assert successor["previous_response_id"] == target
    assert successor["usage"]["input_tokens"] > stopped["usage"]["input_tokens"]
    for name, value in settings.items():
        assert successor[name] == value
    assert successor["store"] is store
    if store:
        assert http.get(f"/responses/{target}").json() == stopped
        assert http.get(f"/responses/{successor['id']}").json() == successor
        assert said(http, successor) == [THINKS, NEXT]
    again = client.turn("And now?", previous_response_id=successor["id"], store=store)
    assert again["status"] == "completed"


def test_a_message_is_written_to_its_end_before_the_successor(client: Steerer) -> None:
    target = client.begin(WRITES, "response.output_text.delta")
    assert client.steer(target)["type"] == "response.steer.accepted"
    whole = client.end()
    assert (whole["id"], whole["status"]) == (target, "completed")
    assert text_of(whole) == "word " * 20
    assert text_of(client.successor()) == "Steered."


def test_a_response_that_is_steered_at_an_items_end_begins_no_call(client: Steerer) -> None:
    parts = [{"think": "hm"}, {"say": "One."}, {"hang": 0.5}, {"call": "f", "args": {}}]
    target = client.begin(script(parts), "response.output_item.done", tools=[TOOL])
    client.steer(target)
    stopped = client.end()
    assert stopped["incomplete_details"] == {"reason": "steered"}
    assert stopped["output"][0]["type"] == "reasoning"
    assert {item["type"] for item in stopped["output"]} <= {"reasoning", "message"}
    assert text_of(client.successor()) == "Steered."


def test_a_tool_of_the_server_runs_to_its_end(client: Steerer, http: httpx.Client) -> None:
    gated_tools.GATE.clear()
    gated_tools.STARTED.clear()
    asked = script({"mcp": "wait", "args": {}}, {"say": "never said"})
    target = client.begin(asked, "response.mcp_call.in_progress", tools=[GATED])
    assert gated_tools.STARTED.wait(20)
    assert client.steer(target)["type"] == "response.steer.accepted"
    gated_tools.GATE.set()
    stopped = client.end()
    assert stopped["incomplete_details"] == {"reason": "steered"}
    *_, call = stopped["output"]
    assert (call["type"], call["status"], call["output"]) == ("mcp_call", "completed", "it is open")
    successor = client.successor()
    assert text_of(successor) == "Steered."
    assert [tool["server_label"] for tool in successor["tools"]] == ["gated"]
    assert http.get(f"/responses/{target}").json() == stopped


def test_tools_that_run_side_by_side_all_end_before_the_successor(
    client: Steerer, http: httpx.Client
) -> None:
    gated_tools.GATE.clear()
    gated_tools.STARTED.clear()
    calls = [{"mcp": "wait", "args": {"n": number}} for number in range(3)]
    target = client.begin(
        script(calls, {"say": "no"}), "response.mcp_call.in_progress", tools=[GATED]
    )
    assert gated_tools.STARTED.wait(20)
    first = client.steer(target, "One.")
    second = client.steer(target, NEXT)
    assert [each["type"] for each in (first, second)] == ["response.steer.accepted"] * 2
    gated_tools.GATE.set()
    stopped = client.end()
    assert stopped["incomplete_details"] == {"reason": "steered"}
    ran = [item for item in stopped["output"] if item["type"] == "mcp_call"]
    assert [(item["status"], item["output"]) for item in ran] == [("completed", "it is open")] * 3
    successor = client.successor()
    assert text_of(successor) == "Steered."
    assert said(http, successor)[1:] == ["One.", NEXT]


def test_a_successor_whose_tool_runs_is_steered_in_its_turn(
    client: Steerer, http: httpx.Client
) -> None:
    gated_tools.GATE.clear()
    target = client.begin(THINKS, "response.reasoning_text.delta", tools=[GATED])
    asked = script({"mcp": "wait", "args": {}}, {"say": "never said"})
    client.steer(target, asked)
    client.end()
    gated_tools.STARTED.clear()
    middle = str(client.until("response.mcp_call.in_progress")[0]["response"]["id"])
    assert gated_tools.STARTED.wait(20)
    late = client.steer(target, "Too late.")
    assert (late["type"], late["error"]["code"]) == ("response.steer.failed", "response_not_active")
    assert client.steer(middle)["type"] == "response.steer.accepted"
    gated_tools.GATE.set()
    assert client.end()["incomplete_details"] == {"reason": "steered"}
    last = client.successor()
    assert (last["previous_response_id"], text_of(last)) == (middle, "Steered.")
    assert said(http, last) == [THINKS, asked, NEXT]


def test_a_steer_waits_for_an_approval(client: Steerer, http: httpx.Client) -> None:
    tool = {**GATED, "require_approval": "always"}
    asked = script([{"mcp": "wait", "args": {}}, {"hang": 0.5}], {"say": "Approved."})
    target = client.begin(asked, "response.output_item.added", tools=[tool])
    asks = client.until("response.output_item.added")[-1]  # the first item is the list of tools
    assert asks["item"]["type"] == "mcp_approval_request"
    steer = client.steer(target, "Steer 0.")
    assert steer["type"] == "response.steer.accepted"
    whole = client.end()
    assert whole["status"] == "completed"
    [request] = [item for item in whole["output"] if item["type"] == "mcp_approval_request"]
    pending = client.event()
    assert (pending["type"], pending["steer"]) == ("response.steer.pending", steer["steer"])
    stub = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
    assert pending["required_input"] == [stub]
    answer = {**stub, "approve": False}
    last = client.turn([answer], previous_response_id=target, tools=[tool])
    assert last["status"] == "completed"
    assert "Steer 0." in said(http, last)


@pytest.mark.parametrize("ticks", [0.0, 0.002, 0.02])
@pytest.mark.parametrize("store", [True, False])
def test_no_steer_is_lost_whenever_it_comes(
    client: Steerer, http: httpx.Client, store: bool, ticks: float
) -> None:
    """It is accepted and applied once, or it comes back: also at an item's end, at the response's
    end, and while a successor begins."""
    parts = [{"think": "hm"}, {"say": "a b c", "tick": 0.002}, {"think": "hm"}, {"say": "d e"}]
    running = client.begin(script(parts), "response.created", store=store)
    accepted: dict[str, str] = {}
    failed: list[str] = []
    for number in range(12):
        text = f"Steer {number}."
        client.send(type="response.steer", previous_response_id=running, input=text)
        while True:
            event = client.event()
            if event["type"] == "response.created":
                running = event["response"]["id"]
            elif event["type"] == "response.steer.accepted":
                accepted[event["steer"]["id"]] = text
                break
            elif event["type"] == "response.steer.failed":
                assert event["error"]["code"] in (
                    "response_not_active",
                    "response_already_completed",
                )
                assert event["steer"] == {
                    "previous_response_id": event["steer"]["previous_response_id"],
                    "input": text,
                }
                failed.append(text)
                break
        time.sleep(ticks)
    # A request of the same lane comes after all successors.
    client.ask("The end.", store=store)
    last: dict[str, Any] = {}
    while "Echo: The end." not in text_of(last or {"output": []}):
        event = client.event()
        assert not event["type"].startswith("response.steer"), event
        if event["type"] == "response.created" and event["response"]["previous_response_id"]:
            running = event["response"]["id"]
        if event["type"] in LAST:
            last = event["response"]
    if store:
        assert said(http, {"id": running})[1:] == [*accepted.values()]
    assert sorted([*accepted.values(), *failed]) == sorted(f"Steer {n}." for n in range(12))


# --- what the client must answer first ------------------------------------------------------------


@pytest.mark.parametrize("store", [True, False])
def test_a_steer_waits_for_the_results_of_the_clients_calls(
    client: Steerer, http: httpx.Client, store: bool
) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "store": store, "stream_id": "a"}
    target = client.begin(CALLS, "response.output_item.added", **fields)
    accepted = [client.steer(target, f"Steer {number}.") for number in range(2)]
    called = client.end()
    assert (called["status"], called["output"][-1]["type"]) == ("completed", "function_call")
    call_id = called["output"][-1]["call_id"]
    pending = [client.event() for _ in accepted]
    for each, event in zip(accepted, pending, strict=True):
        assert event["type"] == "response.steer.pending"
        assert event["steer"] == each["steer"]
        assert event["reason"] == "waiting_for_required_input"
        assert event["stream_id"] == "a"
        stub = {"type": "function_call_output", "call_id": call_id, "name": "f"}
        assert event["required_input"] == [stub]
    output = {"type": "function_call_output", "call_id": call_id, "output": "1"}
    last = client.turn([output], previous_response_id=target, **fields)
    assert (last["status"], last["previous_response_id"]) == ("completed", target)
    if store:
        assert said(http, last) == [CALLS, "Steer 0.", "Steer 1."]


def test_steers_that_wait_come_back_if_their_lane_goes_on_without_them(client: Steerer) -> None:
    target = client.begin(CALLS, "response.output_item.added", tools=[TOOL], stream_id="a")
    steer = client.steer(target, "Faster.")["steer"]
    client.end()
    assert client.event()["type"] == "response.steer.pending"
    client.ask("something else", stream_id="b")
    assert client.until(*LAST)[0]["type"] == "response.created", "another lane changes nothing"
    client.ask("something else", stream_id="a")
    failed = client.event()
    assert failed["type"] == "response.steer.failed"
    assert failed["steer"] == {**steer, "input": "Faster."}
    assert failed["error"]["code"] == "response_not_active"
    assert client.end()["status"] == "completed"


# --- several steers -------------------------------------------------------------------------------


def test_steers_of_one_response_come_in_their_order_and_a_successor_is_steered_again(
    client: Steerer, http: httpx.Client
) -> None:
    target = client.begin(THINKS, "response.reasoning_text.delta")
    first, second = (client.steer(target, given) for given in ("One.", THINKS))
    assert first["steer"]["id"] != second["steer"]["id"]
    client.end()
    middle = str(client.until("response.reasoning_text.delta")[0]["response"]["id"])
    client.steer(middle, [{"type": "message", "role": "user", "content": NEXT}])
    stopped = client.end()
    assert (stopped["id"], stopped["previous_response_id"]) == (middle, target)
    assert stopped["incomplete_details"] == {"reason": "steered"}
    assert said(http, stopped) == [THINKS, "One.", THINKS]
    last = client.successor()
    assert (last["previous_response_id"], text_of(last)) == (middle, "Steered.")


def test_no_more_than_some_steers_wait(client: Steerer) -> None:
    target = client.begin(script([{"think": "hm"}, {"hang": 30}]), "response.reasoning_text.delta")
    answers = [client.steer(target, "x")["type"] for _ in range(17)]
    assert answers == ["response.steer.accepted"] * 16 + ["response.steer.failed"]
    failed = client.steer(target, "y")
    assert failed["error"]["code"] == "too_many_pending_steers"
    assert failed["steer"] == {"previous_response_id": target, "input": "y"}


def test_each_lane_is_steered_alone_and_keeps_its_successor(client: Steerer) -> None:
    asked = script([{"think": "hm"}, {"hang": 1}, {"say": "Not steered."}])
    lanes: list[str | None] = ["a", "b", None]
    for lane in lanes:
        client.ask(asked, **({} if lane is None else {"stream_id": lane}))
    targets: dict[str | None, str] = {}
    while len(targets) < len(lanes):
        created = client.until("response.created")[-1]
        targets[created.get("stream_id")] = created["response"]["id"]
    accepted = client.steer(targets["b"])
    assert accepted["stream_id"] == "b"
    client.ask("waits", stream_id="b")
    ends: list[Event] = []
    while len(ends) < len(lanes) + 2:
        ends.append(client.until(*LAST)[-1])
    for lane in lanes:
        texts = [text_of(end["response"]) for end in ends if end.get("stream_id") == lane]
        reached = ["", "Steered.", "Echo: waits"] if lane == "b" else ["Not steered."]
        assert texts == reached


# --- steers that come back ------------------------------------------------------------------------


def test_a_response_that_has_ended_takes_no_steer(client: Steerer) -> None:
    ended = client.turn(stream_id="a")["id"]
    failed = client.steer(ended)
    assert failed["error"]["code"] == "response_already_completed"
    assert failed["stream_id"] == "a"
    assert failed["steer"] == {"previous_response_id": ended, "input": NEXT}
    cut = client.turn(script({"say": "word ", "repeat": 50}), max_output_tokens=20)["id"]
    assert client.steer(cut)["error"]["code"] == "response_not_active"
    steered = client.begin(THINKS, "response.reasoning_text.delta")
    client.steer(steered)
    client.end()
    client.successor()
    assert client.steer(steered)["error"]["code"] == "response_not_active"


def test_a_response_that_fails_gives_its_steers_back(client: Steerer) -> None:
    target = client.begin(FAILS, "response.output_text.delta")
    accepted = client.steer(target)
    assert client.end()["status"] == "failed"
    failed = client.event()
    assert failed["type"] == "response.steer.failed"
    assert failed["steer"] == {**accepted["steer"], "input": NEXT}
    assert failed["error"]["code"] == "response_not_active"
    assert "failed" in failed["error"]["message"]
    assert client.turn()["status"] == "completed"


def test_a_successor_that_cannot_be_created_gives_its_steers_back(client: Steerer) -> None:
    target = client.begin(THINKS, "response.reasoning_text.delta", store=False)
    unknown = [
        {"role": "user", "content": [{"type": "input_image", "file_id": "file-none"}]},
    ]
    steer = client.steer(target, unknown)["steer"]
    assert client.end()["incomplete_details"] == {"reason": "steered"}
    failed = client.event()
    assert failed["type"] == "response.steer.failed"
    assert failed["error"]["code"] == "successor_creation_failed"
    assert failed["steer"] == {**steer, "input": unknown}
    continued = client.turn(NEXT, previous_response_id=target, store=False)
    assert text_of(continued) == "Steered.", "the unstored parent is still there"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("", "'input'"),
        (5, "'input'"),
        (None, "'input'"),
        ([], "'input'"),
        ([5], "'input[0]'"),
        ([{"role": "user"}], "input[0].content"),
        ([{"content": "x"}], "input[0].role"),
        ([{"role": "system", "content": "x"}], "'input[0].role'"),
        ([{"role": "user", "content": 5}], "'input[0].content'"),
        ([{"role": "user", "content": "x", "id": "msg_1"}], "`id`"),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": [5]}], "input[1].content"),
        ([{"role": "user", "content": [{"type": "output_text", "text": "x"}]}], "'output_text'"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "content[0].text"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "x", "texd": 1}]}],
            "`texd`",
        ),
        ([{"type": "function_call_output", "call_id": "c", "output": ""}], "input[0]"),
        ([{"type": "reasoning", "role": "user", "content": "x"}], "'input[0].type'"),
    ],
)
def test_a_malformed_steer_comes_back_and_names_the_field(
    server: Any, given: Any, named: str
) -> None:
    with joined(server) as client:
        target = client.begin(script([{"say": "x"}, {"hang": 30}]), "response.created")
        failed = client.steer(target, given)
    assert failed["type"] == "response.steer.failed"
    assert failed["error"]["code"] == "invalid_input"
    assert failed["error"]["type"] == "invalid_request_error"
    assert named in failed["error"]["message"]
    assert failed["steer"] == {"previous_response_id": target, "input": given}


def test_a_steer_has_no_other_fields(server: Any) -> None:
    with joined(server) as client:
        target = client.begin(script([{"say": "x"}, {"hang": 30}]), "response.created")
        for fields in ({"stream_id": "a"}, {"model": "x"}):
            failed = client.steer(target, **fields)
            assert failed["error"]["code"] == "invalid_input"
            assert repr(next(iter(fields))) in failed["error"]["message"]


def test_what_cannot_be_steered_says_why(server: Any, http: httpx.Client) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    asked = script([{"say": "x"}, {"hang": 30}])
    for field, value in {
        "conversation": conversation,
        "context_management": [{"type": "compaction", "compact_threshold": 5000}],
    }.items():
        with joined(server) as client:
            target = client.begin(asked, "response.created", **{field: value})
            error = client.steer(target)["error"]
        assert error["code"] == "steering_not_supported"
        assert field in error["message"]


def test_a_response_of_another_connection_or_tenant_is_not_found(
    serve_from: Any, tmp_path: Path, model: str
) -> None:
    keys, secrets = tmp_path / "keys.toml", []
    for tenant in ("ours", "theirs"):
        secret, api_key = create_key("ci", tenant, new_id=new_id, now=time.time)
        append(keys, api_key)
        secrets.append(secret)
    with (
        serve_from(tmp_path, auth="on", keys_file=keys) as server,
        joined(server, model, secrets[0]) as ours,
        joined(server, model, secrets[0]) as also_ours,
        joined(server, model, secrets[1]) as theirs,
    ):
        target = ours.begin(THINKS, "response.created")
        answers = [
            client.steer(response_id)
            for client in (also_ours, theirs)
            for response_id in (target, "resp_that_never_was")
        ]
        assert ours.end()["status"] == "completed", "nobody has steered it"
    for failed in answers:
        assert failed["type"] == "response.steer.failed"
        assert failed["error"]["code"] == "response_not_found"
        assert "stream_id" not in failed


# --- limits ---------------------------------------------------------------------------------------


def test_a_successor_counts_as_a_request_of_its_key(
    serve_from: Any, tmp_path: Path, model: str
) -> None:
    keys = tmp_path / "keys.toml"
    secret, api_key = create_key("ci", "t", new_id=new_id, now=time.time)
    append(keys, replace(api_key, policy=KeyPolicy(limits={"requests/day": 2})))
    with (
        serve_from(tmp_path, auth="on", keys_file=keys) as server,
        joined(server, model, secret) as client,
    ):
        target = client.begin(THINKS, "response.reasoning_text.delta")
        client.steer(target, THINKS)
        client.end()
        middle = str(client.until("response.reasoning_text.delta")[0]["response"]["id"])
        steer = client.steer(middle)["steer"]
        assert client.end()["incomplete_details"] == {"reason": "steered"}
        failed = client.event()
        assert failed["error"]["code"] == "successor_creation_failed"
        assert failed["steer"] == {**steer, "input": NEXT}
        assert client.refusal()["code"] == "rate_limit_exceeded"


def test_a_connection_that_closes_begins_no_successor(serve: Any, model: str) -> None:
    asked = script([{"think": "hm"}, {"hang": 2}, {"say": "never said"}])
    with serve(websocket_s=1) as server, joined(server, model) as client:
        target = client.begin(asked, "response.reasoning_text.delta")
        steer = client.steer(target)["steer"]
        assert client.end()["incomplete_details"] == {"reason": "steered"}
        failed = client.event()
        assert failed["error"]["code"] == "successor_creation_failed"
        assert failed["steer"] == {**steer, "input": NEXT}
        assert client.event()["error"]["code"] == "websocket_connection_limit_reached"


def test_too_many_wrong_steers_close_the_connection(server: Any) -> None:
    with joined(server) as client:
        codes = []
        for _ in range(200):
            try:
                codes.append(client.steer("resp_none")["error"]["code"])
            except Exception as closed:
                assert "Too many refused messages" in str(closed)
                break
        assert set(codes) == {"response_not_found"}
        assert len(codes) < 200
