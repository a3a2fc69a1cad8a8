"""A disk that takes no more: what can be read is served, and all is well once there is room."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.faults.support import full_disk
from tests.faults.support.replicas import (
    LEASE_S,
    MODEL,
    Replica,
    background,
    frames_of,
    replicas,
    stream,
    wait_for,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="prlimit is Linux's"),
]

RUN = '@@script [[{"say": "word ", "repeat": 150, "tick": 0.02}]]'


def let_grow(server: Replica, size: int) -> None:
    """Let no file of the server's be written past this size."""
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def post(server: Replica, **fields: object) -> httpx.Response:
    body = {"model": MODEL, "input": "hi", **fields}
    return httpx.post(f"{server.api}/responses", json=body, timeout=20)


def status(server: Replica, response_id: str) -> str:
    return str(httpx.get(f"{server.api}/responses/{response_id}").json()["status"])


@pytest.mark.timeout(60)
def test_a_server_whose_disk_is_full_goes_on_and_recovers_by_itself(tmp_path: Path) -> None:
    options = ("--store", f"sqlite:///{tmp_path}/kept.db", "--store-retry-s", "1")
    with replicas(tmp_path, *options, count=1) as [server]:
        kept = post(server).json()
        runs = httpx.post(f"{server.api}/responses", json=background(RUN)).json()

        let_grow(server, 0)
        assert post(server).status_code == 500
        assert post(server, background=True).status_code == 500
        assert post(server, store=False).json()["status"] == "completed"
        assert httpx.get(f"{server.api}/responses/{kept['id']}").json() == kept
        assert httpx.delete(f"{server.api}/responses/{kept['id']}").status_code == 500
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, ready.json()["store"]) == (503, "unavailable")
        assert ready.json()["files"] == "unavailable"
        assert set(ready.json()["reasons"]) == {"store", "files"}
        assert httpx.get(f"{server.url}/livez").status_code == 200

        let_grow(server, resource.RLIM_INFINITY)
        wait_for(lambda: httpx.get(f"{server.url}/readyz").status_code == 200 or None, limit_s=2)
        assert post(server).json()["status"] == "completed"
        assert httpx.delete(f"{server.api}/responses/{kept['id']}").status_code == 200
        wait_for(lambda: status(server, runs["id"]) != "in_progress" or None, limit_s=LEASE_S + 10)
        # It has gone on, or failed where its events could not be written for `store_retry_s`.
        frames = frames_of(stream(server.api, runs["id"]))
        assert sorted(frames) == list(range(len(frames)))
        last = frames[len(frames) - 1]
        assert f"response.{status(server, runs['id'])}".encode() in last
        assert server.stop() == 0


def on_small_disk(folder: Path) -> tuple[str, ...]:
    """Return the beginning of a command that sees the folder as a disk of 24 MB, empty at first."""
    folder.mkdir()
    disk = ("--size", str(24 * 1024 * 1024), "--tmpfs", str(folder))
    return ("bwrap", "--die-with-parent", "--dev-bind", "/", "/", *disk)


needs_bwrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed"
)


@pytest.mark.timeout(90)
@needs_bwrap
def test_a_killed_server_starts_again_on_a_full_disk(tmp_path: Path) -> None:
    small = tmp_path / "small"
    life = f"{sys.executable} {full_disk.__file__} {small}/kept.db"
    command = (*on_small_disk(small), "sh", "-c", f"{life} && {life}")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "it is open\nit is full\n" * 2, ended.stderr


@pytest.mark.timeout(90)
@needs_bwrap
def test_who_deletes_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    own, small = tmp_path / "server", tmp_path / "small"
    own.mkdir()
    server = Replica(
        own,
        *("--data-dir", str(small), "--store", f"sqlite:///{small}/kept.db"),
        *("--store-retry-s", "0.1"),
        within=on_small_disk(small),
    )
    try:
        server.start()
        large = "a" * 400_000
        kept = []
        while (answer := post(server, input=large)).status_code == 200:
            kept.append(answer.json()["id"])
        assert len(kept) > 10
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, ready.json()["reasons"]["store"]) == (503, "the disk is full")

        for each in kept:
            assert httpx.delete(f"{server.api}/responses/{each}").status_code == 200
        for _ in kept[:-2]:  # in the room that they leave, again and again
            assert post(server, input=large).status_code == 200
        wait_for(lambda: httpx.get(f"{server.url}/readyz").status_code == 200 or None, limit_s=3)
    finally:
        server.kill()
