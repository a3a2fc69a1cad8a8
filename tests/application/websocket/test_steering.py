"""The steers of a connection: each is accepted once, and ends in a response or at the client."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from tests.domain.delta_strategies import DELTAS, running

from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.websocket.lanes import Lane
from antiphon.application.websocket.steering import (
    MAX_ENDED_RESPONSES,
    AfterEnd,
    SteerAccepted,
    SteerFailed,
    Steering,
)
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError
from antiphon.domain.items import may_end_after
from antiphon.domain.requests.request import (
    CompactionRule,
    CreateResponse,
    MultiAgentParams,
    PromptCacheOptions,
)
from antiphon.domain.responses.response import IncompleteDetails, Response
from antiphon.domain.responses.steering import (
    MAX_WAITING,
    decode_steer,
    ending_of,
    required_input,
    successor_of,
    why_not_steerable,
)

MAX_BYTES = 1000


class Connection:
    """A connection whose lanes answer what a test gives them."""

    def __init__(self) -> None:
        numbers = count(1)
        self.work = BytesInWork()
        held = self.work.hold("t", "requests", free=0)
        self.steering = Steering(
            held, max_bytes=MAX_BYTES, new_id=lambda prefix: f"{prefix}_{next(numbers)}"
        )

    def run(self, response_id: str, lane: Lane = None, **fields: Any) -> None:
        self.steering.begin(lane, CreateResponse(model="m", input="hi", **fields))
        self.open(response_id, lane)

    def open(self, response_id: str, lane: Lane = None) -> None:
        self.steering.open(lane, response_id)
        self.steering.commit(lane)

    def steer(self, target: str, steer_input: Any = "Shorter.", **fields: Any) -> Any:
        message = {"type": "response.steer", "previous_response_id": target, "input": steer_input}
        return self.steering.receive(decode_steer(json.dumps({**message, **fields}).encode()))

    def end(self, response: Response, lane: Lane = None) -> AfterEnd:
        return self.steering.end(lane, CreateResponse(model="m", input="hi"), response)


@pytest.fixture
def connection() -> Connection:
    return Connection()


def ended(response_id: str, status: str = "completed", **fields: Any) -> Response:
    return Response(id=response_id, created_at=1, model="m", status=status, **fields)


def steered(response_id: str) -> Response:
    details = IncompleteDetails(reason="steered")
    return ended(response_id, "incomplete", incomplete_details=details)


def inputs(request: CreateResponse) -> list[Any]:
    assert isinstance(request.input, tuple)
    return [msgspec.json.decode(item)["content"] for item in request.input]


CALL = i.FunctionCall(id="fc_1", call_id="c1", name="f", arguments="{}")

# --- what follows the end -------------------------------------------------------------------------


@pytest.mark.parametrize("response", [ended("r"), steered("r")])
def test_a_successor_has_the_steers_as_its_input(
    connection: Connection, response: Response
) -> None:
    connection.run("r", "a")
    for text in ("One.", "Two."):
        accepted = connection.steer("r", text)
        assert isinstance(accepted, SteerAccepted)
        assert accepted.stream_id == "a"
    after = connection.end(response, "a")
    assert after.events == ()
    assert after.successor is not None
    assert after.successor.follows
    assert after.successor.request.previous_response_id == "r"
    assert inputs(after.successor.request) == ["One.", "Two."]
    assert after.successor.request.model == "m"


def test_without_steers_nothing_follows(connection: Connection) -> None:
    connection.run("r")
    assert connection.end(ended("r")) == AfterEnd()
    assert connection.end(ended("r")) == AfterEnd(), "a second end changes nothing"


@pytest.mark.parametrize(
    "response",
    [
        ended("r", "failed"),
        ended("r", "cancelled"),
        ended("r", "incomplete", incomplete_details=IncompleteDetails(reason="max_output_tokens")),
    ],
)
def test_steers_come_back_if_the_response_was_cut_or_failed(
    connection: Connection, response: Response
) -> None:
    connection.run("r")
    steer_id = connection.steer("r").steer.id
    after = connection.end(response)
    assert after.successor is None
    (failed,) = after.events
    assert isinstance(failed, SteerFailed)
    assert failed.steer.id == steer_id
    assert failed.error.code == "response_not_active"
    assert response.status in failed.error.message
    assert connection.steer("r").error.code == "response_not_active"


def test_steers_wait_for_a_client_and_begin_its_request(connection: Connection) -> None:
    connection.run("r", "a")
    connection.steer("r", "One.")
    after = connection.end(ended("r", output=(CALL,)), "a")
    assert [event.__struct_config__.tag for event in after.events] == ["response.steer.pending"]
    request = CreateResponse(model="n", input="Two.", previous_response_id="r")
    other, returned = connection.steering.begin("b", request)
    assert (other.request, returned) == (request, []), "another lane takes nothing"
    asked, returned = connection.steering.begin("a", request)
    assert not returned
    assert inputs(asked.request) == ["One.", "Two."]
    assert (asked.request.model, asked.follows) == ("n", False)
    again, _ = connection.steering.begin("a", request)
    assert again.request == request, "once"


def test_a_refused_request_gives_back_the_steers_that_it_began_with(connection: Connection) -> None:
    connection.run("r")
    steer_id = connection.steer("r").steer.id
    connection.end(ended("r", output=(CALL,)))
    connection.steering.begin(None, CreateResponse(model="m", previous_response_id="r"))
    (failed,) = connection.steering.fail(None, "No.")
    assert (failed.steer.id, failed.error.code) == (steer_id, "successor_creation_failed")
    assert failed.error.message == "No."
    assert connection.steering.fail(None, "No.") == []


def test_a_response_that_cannot_be_read_gives_back_what_waits_for_its_end(
    connection: Connection,
) -> None:
    connection.run("r")
    connection.steer("r")
    (failed,) = connection.steering.fail(None, "No.")
    assert failed.error.code == "response_not_active"
    assert connection.steer("r").error.code == "response_not_active"


def test_steers_that_wait_come_back_when_the_connection_closes(connection: Connection) -> None:
    connection.run("r", "a")
    connection.steer("r")
    connection.end(ended("r", output=(CALL,)), "a")
    (failed,) = connection.steering.close("Over.")
    assert (failed.stream_id, failed.error.message) == ("a", "Over.")
    assert connection.steering.close("Over.") == []


@pytest.mark.parametrize(
    ("item", "stub"),
    [
        (CALL, {"type": "function_call_output", "call_id": "c1", "name": "f"}),
        (
            i.CustomToolCall(id="x", call_id="c1", name="f", input=""),
            {"type": "custom_tool_call_output", "call_id": "c1"},
        ),
        (
            i.ComputerCall(id="x", call_id="c1"),
            {"type": "computer_call_output", "call_id": "c1"},
        ),
        (
            i.ShellCall(id="x", call_id="c1", action={"commands": []}),
            {"type": "shell_call_output", "call_id": "c1"},
        ),
        (
            i.ApplyPatchCall(id="x", call_id="c1", operation={}),
            {"type": "apply_patch_call_output", "call_id": "c1"},
        ),
        (
            i.ToolSearchCall(id="x", call_id="c1", arguments={}, execution="client"),
            {"type": "tool_search_output", "call_id": "c1", "execution": "client"},
        ),
        (
            i.LocalShellCall(id="x", call_id="c1", action={}),
            {"type": "local_shell_call_output", "id": "c1"},
        ),
        (
            i.McpApprovalRequest(id="mcpr_1", server_label="s", name="t", arguments="{}"),
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1"},
        ),
    ],
)
def test_the_required_input_is_a_stub_of_each_answer(item: Any, stub: dict[str, Any]) -> None:
    assert msgspec.to_builtins(required_input([item])) == [stub]


def test_what_is_answered_is_not_required() -> None:
    output = i.FunctionCallOutput(call_id="c1", output="1")
    message = i.Message(role="assistant", content="x")
    assert required_input([CALL, output, message]) == []
    assert not ending_of(ended("r", output=(message,)), []).required_input


# --- what may be steered --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "is_steerable"),
    [
        ({}, True),
        ({"store": False}, True),
        ({"conversation": "conv_1"}, False),
        ({"context_management": (CompactionRule(),)}, False),
        ({"multi_agent": MultiAgentParams(enabled=True)}, False),
        ({"generate": False}, False),
        ({"prompt_cache_options": PromptCacheOptions(prewarm=True)}, False),
        ({"previous_input_messages": ({},)}, False),
    ],
)
def test_some_responses_cannot_be_steered(
    connection: Connection, fields: dict[str, Any], is_steerable: bool
) -> None:
    connection.run("r", **fields)
    answer = connection.steer("r", "")
    assert answer.error.code == ("invalid_input" if is_steerable else "steering_not_supported")
    request = CreateResponse(model="m", input="hi", **fields)
    assert (why_not_steerable(request) is None) is is_steerable


def test_a_successor_has_the_settings_of_its_response() -> None:
    request = CreateResponse(
        model="m",
        input="hi",
        instructions="i",
        previous_response_id="r0",
        store=False,
        temperature=1,
        tool_choice="required",
    )
    found = successor_of(request, "r1", [])
    assert found == msgspec.structs.replace(request, input=None, previous_response_id="r1")


USER = {"role": "user", "content": "Shorter, please."}


@pytest.mark.parametrize(
    "steer_input",
    [
        "x",
        [USER, {**USER, "type": "message"}],
        [{**USER, "content": []}],
        [
            {
                **USER,
                "content": [
                    {"type": "input_text", "text": "x"},
                    {"type": "input_image", "image_url": "data:image/png;base64,", "detail": "low"},
                    {"type": "input_file", "file_id": "file-1"},
                ],
            }
        ],
    ],
)
def test_input_is_what_a_user_may_say(connection: Connection, steer_input: Any) -> None:
    connection.run("r")
    assert isinstance(connection.steer("r", steer_input), SteerAccepted)
    successor = connection.end(steered("r")).successor
    assert successor is not None
    sent = [{"role": "user", "content": "x"}] if steer_input == "x" else steer_input
    found = [msgspec.json.decode(item) for item in successor.request.input or ()]
    for was, item in zip(sent, found, strict=True):
        assert item | was == item


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({}, "previous_response_id"),
        ({"previous_response_id": "x"}, "input"),
        ({"input": "x"}, "previous_response_id"),
        ({"previous_response_id": 5, "input": "x"}, "previous_response_id"),
        ({"previous_response_id": "x" * 5000, "input": "x"}, "previous_response_id"),
    ],
)
def test_a_steer_without_a_target_or_input_is_an_error(message: Any, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        decode_steer(json.dumps(message).encode())
    assert refused.value.param == param


def test_a_steer_has_no_lane(connection: Connection) -> None:
    connection.run("r", "a")
    failed = connection.steer("r", stream_id="a")
    assert (failed.error.code, failed.stream_id) == ("invalid_input", "a")
    assert "'stream_id'" in failed.error.message
    assert failed.steer.id is UNSET
    assert failed.steer.input == Raw(b'"Shorter."')


# --- bounds ---------------------------------------------------------------------------------------


def test_so_many_steers_wait_and_so_many_bytes(connection: Connection) -> None:
    connection.run("r")
    codes = [getattr(connection.steer("r"), "error", None) for _ in range(MAX_WAITING + 1)]
    assert codes[:-1] == [None] * MAX_WAITING
    assert codes[-1] is not None
    assert codes[-1].code == "too_many_pending_steers"
    connection.end(ended("r"))
    connection.steering.fail(None, "No.")
    connection.run("s")
    assert isinstance(connection.steer("s", "x" * (MAX_BYTES - 2)), SteerAccepted)
    assert connection.steer("s", "x").error.code == "too_many_pending_steers"


def test_their_bytes_are_the_tenants_until_their_response_ends(connection: Connection) -> None:
    connection.run("r")
    connection.steer("r", "x" * 100)
    successor = connection.end(steered("r")).successor
    assert successor is not None
    assert connection.work.held_by("t") == 102
    connection.open("s")
    assert connection.work.held_by("t") == 102
    connection.end(ended("s"))
    assert connection.work.held_by("t") == 0


def test_a_tenant_without_room_gets_its_steers_back() -> None:
    connection = Connection()
    connection.run("r")
    room = connection.work.share - 50
    with connection.work.hold("t", "requests") as other:
        other.resize(room)
        failed = connection.steer("r", "x" * 100)
    assert failed.error.code == "too_many_pending_steers"
    assert isinstance(connection.steer("r", "x" * 100), SteerAccepted)


def test_responses_that_ended_long_ago_are_not_found(connection: Connection) -> None:
    connection.run("first")
    connection.end(ended("first"))
    assert connection.steer("first").error.code == "response_already_completed"
    for number in range(MAX_ENDED_RESPONSES):
        connection.run(f"resp_{number}")
        connection.end(ended(f"resp_{number}"))
    assert connection.steer("first").error.code == "response_not_found"
    assert connection.steer("resp_0").error.code == "response_already_completed"
    assert connection.steer("resp_none").error.code == "response_not_found"


def test_a_connection_that_closes_takes_no_steers(connection: Connection) -> None:
    connection.run("r")
    body = b'{"previous_response_id": "r", "input": "x"}'
    failed = connection.steering.receive(decode_steer(body), closing="Over.")
    assert isinstance(failed, SteerFailed)
    assert (failed.error.code, failed.error.message) == ("response_not_active", "Over.")


# --- where a response stops -----------------------------------------------------------------------


@given(
    st.lists(DELTAS.filter(lambda each: not isinstance(each, d.TurnEnd)), max_size=12), st.data()
)
def test_a_steered_turn_writes_what_it_would_have_written_up_to_an_item(
    deltas: list[d.Delta], data: st.DataObject
) -> None:
    steered_from = data.draw(st.integers(0, len(deltas)))
    plain, stopping = running(), running()
    for delta in deltas[:steered_from]:
        plain.feed(delta)
        stopping.feed(delta)
    rest = deltas[steered_from:]
    written, stops = stopping.feed_to_boundary(rest, 0)
    whole = [event for delta in rest for event in plain.feed(delta)]
    if not stops:
        assert written == whole
        return
    assert written == whole[: len(written)], "no event differs and none is left out"
    assert all(map(may_end_after, stopping.output)), "no call is left without its answer"
    end = stopping.end_incomplete("steered")
    assert len(end) == 1, "no item is cut"
