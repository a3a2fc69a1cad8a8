"""Two replicas behind Serve's proxy act as one server: any request may reach either."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import background, frames_of, stream, wait_for
from tests.http.wire.websocket_client import LAST, Client
from tests.ray.cluster import HA_PROXY, Cluster
from websockets.sync.client import connect

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

LONG = '@@script [[{"say": "word ", "repeat": 10000, "tick": 0.02}]]'
SHORT = '@@script [[{"say": "word ", "repeat": 20, "tick": 0.02}]]'
READS = 12
"""Requests of which some reach each of two replicas."""


def create(cluster: Cluster, prompt: str = "hi", **fields: Any) -> dict[str, Any]:
    body = {"model": "scripted-chat", "input": prompt, **fields}
    answer = httpx.post(f"{cluster.api}/responses", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def read(cluster: Cluster, response_id: str, *include: str) -> dict[str, Any]:
    url = f"{cluster.api}/responses/{response_id}"
    answer = httpx.get(url, params={"include[]": include}, timeout=30)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def ended(cluster: Cluster, response_id: str) -> dict[str, Any]:
    """Wait until a response has ended, and return it."""

    def found() -> dict[str, Any] | None:
        response = read(cluster, response_id)
        return None if response["status"] in ("queued", "in_progress") else response

    return wait_for(found, limit_s=60)


def test_both_replicas_get_requests(cluster: Cluster) -> None:
    assert len(cluster.servers(2)) == 2


def test_what_one_replica_created_each_can_read_and_continue(cluster: Cluster) -> None:
    first = create(cluster)
    for _ in range(READS):
        assert read(cluster, first["id"])["output"] == first["output"]
        assert create(cluster, previous_response_id=first["id"])["status"] == "completed"


def test_a_stream_arrives_event_by_event_and_its_run_ends_when_the_client_leaves(
    cluster: Cluster,
) -> None:
    body = {"model": "scripted-chat", "input": LONG, "stream": True}
    with httpx.stream("POST", f"{cluster.api}/responses", json=body, timeout=30) as answer:
        lines = answer.iter_lines()
        created = next(line for line in lines if line.startswith("data: "))
        assert any("output_text.delta" in line for line in lines)  # 200 s before the last one
    response_id = json.loads(created.removeprefix("data: "))["response"]["id"]
    assert ended(cluster, response_id)["status"] == "cancelled"


@pytest.mark.skipif(HA_PROXY == "1", reason="HAProxy does not say that such a client has left")
def test_the_run_of_a_client_that_waits_for_the_whole_response_ends_with_it(
    cluster: Cluster,
) -> None:
    body = {"model": "scripted-chat", "input": LONG, "metadata": {"who": "left"}}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{cluster.api}/responses", json=body, timeout=1)

    def left() -> dict[str, Any] | None:
        listed = httpx.get(f"{cluster.api}/responses", timeout=30).json()["data"]
        mine = [each for each in listed if each["metadata"] == body["metadata"]]
        return next((each for each in mine if each["status"] == "cancelled"), None)

    assert wait_for(left)


def test_a_stream_can_be_resumed_at_whichever_replica(cluster: Cluster) -> None:
    response = create(cluster, SHORT, background=True)
    whole = frames_of(stream(cluster.api, response["id"]))
    assert sorted(whole) == list(range(len(whole)))
    for after in range(READS):
        resumed = frames_of(stream(cluster.api, response["id"], after=after))
        assert resumed == {number: each for number, each in whole.items() if number > after}


def test_a_background_run_can_be_cancelled_at_whichever_replica(cluster: Cluster) -> None:
    for _ in range(READS // 2):
        answer = httpx.post(f"{cluster.api}/responses", json=background(LONG), timeout=30)
        url = f"{cluster.api}/responses/{answer.json()['id']}/cancel"
        assert httpx.post(url, timeout=30).json()["status"] == "cancelled"


def test_a_websocket_streams_and_remembers_what_is_not_stored(cluster: Cluster) -> None:
    url = f"{cluster.api.replace('http', 'ws', 1)}/responses"
    with connect(url) as connection:
        client = Client(connection)
        client.ask(SHORT, store=False)
        events = client.until(*LAST)
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        follow_up = client.turn(previous_response_id=events[-1]["response"]["id"], store=False)
        assert follow_up["status"] == "completed"


def test_a_response_names_its_request_once(cluster: Cluster) -> None:
    answer = httpx.get(f"{cluster.api}/models", headers={"x-request-id": "mine"}, timeout=30)
    assert answer.headers.get_list("x-request-id") == ["mine"]
