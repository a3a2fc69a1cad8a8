"""A replica is killed, replaced, or added: what it ran has an end, here or elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import wait_for
from tests.faults.test_stopping_server import LONG, SHORT, SILENT, Reader, body
from tests.ray.cluster import Cluster
from tests.ray.test_two_replicas import create, ended, read
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.sync.client import connect

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


def start(cluster: Cluster, prompt: str) -> str:
    return str(create(cluster, prompt, background=True)["id"])


def start_at_both(cluster: Cluster, prompt: str) -> list[str]:
    """Start six runs, or more until both replicas have some: the proxy may choose one each time."""
    started: list[str] = []
    servers: set[str] = set()
    while len(started) < 6 or len(servers) < 2:
        assert len(started) < 60, "one replica gets everything"
        started.append(start(cluster, prompt))
        servers.add(read(cluster, started[-1], "metrics")["metrics"]["server"])
    return started


@contextmanager
def asking(cluster: Cluster) -> Iterator[list[int]]:
    """Send requests, one after another, until the block ends; yield the statuses."""
    statuses: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=30) as client:
            while not stop.wait(0.05):
                answer = client.post(f"{cluster.api}/responses", json=body("hi"))
                statuses.append(answer.status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


def test_a_redeployment_ends_what_runs_and_refuses_nothing(
    cluster: Cluster, settings: dict[str, Any]
) -> None:
    before = cluster.servers(2)
    url = f"{cluster.api}/responses"
    short = Reader(url, method="POST", json=body(SHORT.replace("20", "100"), stream=True))
    long = [Reader(url, method="POST", json=body(LONG, stream=True)) for _ in range(4)]
    assert all(each.begun.wait(30) for each in (short, *long))
    silent = [start(cluster, SILENT.replace("2", "20")) for _ in range(4)]
    with asking(cluster) as statuses, connect(url.replace("http", "ws", 1)) as connection:
        cluster.deploy(settings)
        with pytest.raises(ConnectionClosed) as closed:
            connection.recv(timeout=60)
        after = cluster.servers(2)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == CloseCode.SERVICE_RESTART
    assert before & after == set()
    assert set(statuses) == {200}
    assert short.end()["response"]["status"] == "completed"
    assert [each.end()["response"]["status"] for each in long] == ["failed"] * len(long)
    assert {ended(cluster, each)["status"] for each in silent} == {"completed"}


def test_what_a_killed_replica_ran_goes_on_at_another(cluster: Cluster) -> None:
    before = cluster.servers(2)
    heard = start_at_both(cluster, LONG)
    readers = [Reader(f"{cluster.api}/responses/{each}?stream=true") for each in heard]
    assert all(each.begun.wait(30) for each in readers)
    silent = [start(cluster, SILENT.replace("2", "6")) for _ in range(6)]
    killed = next(iter(cluster.replicas()))
    cluster.ask("kill", killed)
    assert {ended(cluster, each)["status"] for each in silent} == {"completed"}
    assert {read(cluster, each)["status"] for each in heard} == {"in_progress"}
    for each in heard:
        httpx.post(f"{cluster.api}/responses/{each}/cancel", timeout=30)
    for reader in readers:
        reader.join(timeout=30)  # an open stream would keep its replica from getting requests
    wait_for(lambda: len(cluster.replicas().keys() - {killed}) == 2 or None, limit_s=120)
    now = cluster.servers(2)
    assert len(now - before) == 1
    # Only the server of a run knows where it is now, until it ends.
    assert {ended(cluster, each)["status"] for each in heard} == {"cancelled"}
    records = [read(cluster, each, "metrics")["metrics"] for each in heard]
    assert any(record.get("epoch", 1) > 1 for record in records)
    assert {record["server"] for record in records} <= now


def test_runs_that_wait_bring_another_replica(cluster: Cluster, settings: dict[str, Any]) -> None:
    few = {**settings, "background_runs": 1, "max_replicas": 3, "target_ongoing_requests": 4}
    cluster.deploy(few, {"upscale_delay_s": 1.0})
    waiting = [start(cluster, LONG) for _ in range(14)]
    wait_for(lambda: len(cluster.replicas()) == 3 or None, limit_s=120)
    for each in waiting:
        httpx.post(f"{cluster.api}/responses/{each}/cancel", timeout=30)
