"""A server that is killed while a response is steered: what was stored is whole, what ran has an
end, and the client goes on at another server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import LEASE_S, Replica, replicas, wait_for
from tests.http.conftest import script, text_of
from tests.http.wire.websocket_client import Client, url_of
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

pytestmark = pytest.mark.faults

MODELS = ("scripted-chat", "scripted-harmony")
HANGS = script([{"think": "hm"}, {"hang": 600}, {"say": "never said"}])
THINKS = script([{"think": "hm"}, {"hang": 0.5}, {"say": "never said"}])
NEXT = script({"say": "Steered."})
ENDED = ("completed", "incomplete", "failed", "cancelled")


@pytest.fixture
def pair(tmp_path: Path, shared_store: list[str]) -> Iterator[list[Replica]]:
    with replicas(tmp_path, *shared_store) as started:
        yield started


def ended(server: Replica, response_id: str) -> dict[str, Any]:
    """Return the response as the server has it once it has ended."""

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = httpx.get(f"{server.api}/responses/{response_id}").json()
        return found if found["status"] in ENDED else None

    return wait_for(look, LEASE_S + 10)


def continued(server: Replica, model: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.api}/responses", json={"model": model, **fields}, timeout=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("model", MODELS)
def test_a_steered_response_of_a_killed_server_has_an_end_at_another(
    pair: list[Replica], model: str
) -> None:
    first, second = pair
    with connect(url_of(first), proxy=None) as connection:
        client = Client(connection, model)
        client.ask(HANGS)
        running = client.until("response.reasoning_text.delta")[0]["response"]["id"]
        client.send(type="response.steer", previous_response_id=running, input=NEXT)
        client.until("response.steer.accepted")
        client.ask(THINKS, stream_id="a")
        steered = client.until("response.reasoning_text.delta")[0]["response"]["id"]
        client.send(type="response.steer", previous_response_id=steered, input=HANGS)
        client.until("response.incomplete")
        successor = client.until("response.reasoning_text.delta")[0]["response"]["id"]
        first.kill()
        with pytest.raises(ConnectionClosed):
            client.until("response.completed")
    for response_id in (running, successor):
        failed = ended(second, response_id)
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_restarted")
    whole = ended(second, steered)
    assert whole["incomplete_details"] == {"reason": "steered"}
    assert [item["type"] for item in whole["output"]] == ["reasoning"]
    assert ended(second, successor)["previous_response_id"] == steered
    listed = httpx.get(
        f"{second.api}/responses/{successor}/input_items", params={"order": "asc"}
    ).json()
    texts = [item["content"][0]["text"] for item in listed["data"] if item.get("role") == "user"]
    assert texts == [THINKS, HANGS], "the successor was stored with its steer"
    with connect(url_of(second), proxy=None) as connection:
        client = Client(connection, model)
        client.send(type="response.steer", previous_response_id=running, input=NEXT)
        returned = client.event()
        assert returned["error"]["code"] == "response_not_found", "it ran on another connection"
        assert returned["steer"] == {"previous_response_id": running, "input": NEXT}
        client.ask(THINKS, previous_response_id=steered)
        gone_on = client.until("response.reasoning_text.delta")[0]["response"]["id"]
        client.send(type="response.steer", previous_response_id=gone_on, input=NEXT)
        assert client.until("response.incomplete")[-1]["response"]["id"] == gone_on
        last = client.until("response.completed")[-1]["response"]
        assert (last["previous_response_id"], text_of(last)) == (gone_on, "Steered.")
    again = continued(second, model, previous_response_id=steered, input=NEXT)
    assert (again["status"], text_of(again)) == ("completed", "Steered.")
    assert json.dumps(NEXT) not in json.dumps(ended(second, running)), "it was never applied"
