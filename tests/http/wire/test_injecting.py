"""Outputs that a client puts into a running response over a WebSocket, on both scripted models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import script
from tests.http.tools.test_multi_agent import (
    AGENTS,
    BETA,
    GO,
    WAIT,
    Json,
    act,
    said,
    spawn,
    texts,
)
from tests.http.wire.websocket_client import LAST, Client, Event, url_of
from websockets.sync.client import connect

pytestmark = pytest.mark.one_process

ANSWERS = ("response.inject.created", "response.inject.failed")


class Injector(Client):
    def begin(self, *turns: Any, calls: int = 1, **fields: Any) -> tuple[str, list[str]]:
        """Create a response, and return its id and those of the calls that its agents make."""
        self.ask(script(*turns), multi_agent=AGENTS, tools=[GO], **fields)
        found: list[str] = []
        response_id = ""
        while len(found) < calls:
            event = self.event()
            assert event["type"] not in ("error", *LAST), event
            response_id = response_id or event["response"]["id"]
            item = event.get("item", {})
            if event["type"] == "response.output_item.done" and item["type"] == "function_call":
                found.append(item["call_id"])
        return response_id, found

    def inject(self, response_id: str, *call_ids: str, output: str = "Go.") -> Event:
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": output}
            for call_id in call_ids
        ]
        self.send(type="response.inject", response_id=response_id, input=outputs)
        return self.until(*ANSWERS)[-1]

    def end(self) -> Json:
        last = self.until(*LAST)[-1]
        assert last["type"] == "response.completed", last
        response: Json = last["response"]
        return response


@pytest.fixture
def client(server: Any, model: str) -> Iterator[Injector]:
    url = url_of(server)
    with connect(url, max_size=None, proxy=None, additional_headers=BETA) as connection:
        yield Injector(connection, model)


def test_an_agent_goes_on_in_the_same_response_when_its_output_is_injected(
    client: Injector, http: httpx.Client
) -> None:
    north = spawn("north", act("go"), said("North went."))
    response_id, (call_id,) = client.begin(north, WAIT, WAIT, said("All went."))
    answer = client.inject(response_id, call_id)
    assert answer == {
        "type": "response.inject.created",
        "response_id": response_id,
        "sequence_number": 0,
    }
    response = client.end()
    assert texts(response) == [("/root/north", "North went."), ("/root", "All went.")]
    (output,) = (each for each in response["output"] if each["type"] == "function_call_output")
    assert (output["call_id"], output["output"]) == (call_id, "Go.")
    assert http.get(f"/responses/{response_id}").json() == response
    again = {"model": client.model, "input": script(said("On.")), "multi_agent": AGENTS}
    more = {"previous_response_id": response_id}
    second = http.post("/responses", json={**again, **more}, headers=BETA).json()
    assert texts(second) == [("/root", "On.")]


def test_the_root_goes_on_in_the_same_response_as_well(client: Injector) -> None:
    response_id, (call_id,) = client.begin(act("go"), said("Gone."))
    assert client.inject(response_id, call_id)["type"] == "response.inject.created"
    response = client.end()
    assert [item["type"] for item in response["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]


def test_agents_go_on_one_by_one_and_those_below_them_too(client: Injector) -> None:
    deep = spawn("deep", act("go"), said("Deep went."))
    turns = [
        [
            spawn("north", deep, WAIT, WAIT, said("North.")),
            spawn("south", act("go"), said("South.")),
        ],
        *[WAIT] * 5,
        said("All."),
    ]
    response_id, calls = client.begin(*turns, calls=2)
    for call_id in calls:
        assert client.inject(response_id, call_id)["type"] == "response.inject.created"
    response = client.end()
    assert sorted(texts(response)) == [
        ("/root", "All."),
        ("/root/north", "North."),
        ("/root/north/deep", "Deep went."),
        ("/root/south", "South."),
    ]


def test_outputs_for_a_response_that_has_ended_come_back(client: Injector) -> None:
    client.ask(script(said("Done.")), multi_agent=AGENTS, tools=[GO])
    response = client.end()
    for response_id, code in (
        (response["id"], "response_already_completed"),
        ("resp_none", "response_not_found"),
    ):
        answer = client.inject(response_id, "call_1")
        assert answer["type"] == "response.inject.failed"
        assert answer["error"]["code"] == code
        assert answer["input"] == [
            {"type": "function_call_output", "call_id": "call_1", "output": "Go."}
        ]


def test_a_lane_hears_of_its_own_injections(client: Injector) -> None:
    response_id, (call_id,) = client.begin(act("go"), said("Gone."), stream_id="left")
    assert client.inject(response_id, call_id)["stream_id"] == "left"
    assert client.until(*LAST)[-1]["stream_id"] == "left"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "Go."}, "input"),
        ({"input": [{"role": "user", "content": "Hi"}]}, "input[0].type"),
        (
            {"input": [{"type": "function_call_output", "call_id": "other", "output": "x"}]},
            "input[0].call_id",
        ),
        ({"response_id": 5}, "response_id"),
    ],
)
def test_an_injection_that_is_none_is_refused_and_changes_nothing(
    client: Injector, fields: Json, param: str
) -> None:
    response_id, (call_id,) = client.begin(act("go"), said("Gone."))
    output = {"type": "function_call_output", "call_id": call_id, "output": "Go."}
    message = {"response_id": response_id, "input": [output], **fields}
    if isinstance(fields.get("input"), list) and fields["input"]:
        message["input"] = [*fields["input"], output]
    client.send(type="response.inject", **message)
    refused = client.until("error")[-1]
    assert refused["error"]["param"] == param
    assert client.inject(response_id, call_id)["type"] == "response.inject.created"
    assert client.inject(response_id, call_id)["type"] in ("error", "response.inject.failed")
