"""A server that is told to stop: what runs ends, in time, with an end that its client sees."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

LONG = '@@script [[{"say": "word ", "repeat": 10000, "tick": 0.02}]]'
SHORT = '@@script [[{"say": "word ", "repeat": 20, "tick": 0.02}]]'


def last_event(body: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body.strip().rpartition("data: ")[2])
    return found


@pytest.mark.parametrize(
    ("asked", "graceful_s", "status"), [(SHORT, 10, "completed"), (LONG, 0, "failed")]
)
def test_a_stream_ends_with_its_terminal_event(
    serve: Any, asked: str, graceful_s: int, status: str
) -> None:
    received: list[str] = []
    begun = threading.Event()

    def read(url: str) -> None:
        body = {"model": "scripted-chat", "input": asked, "stream": True}
        with httpx.stream("POST", url, json=body, timeout=20) as answer:
            for part in answer.iter_text():
                received.append(part)
                begun.set()

    with serve(graceful_shutdown_s=graceful_s) as server:
        reader = threading.Thread(target=read, args=(f"{server.api}/responses",))
        reader.start()
        assert begun.wait(timeout=10)
    reader.join(timeout=10)
    assert last_event("".join(received))["response"]["status"] == status


def test_a_background_run_is_ended_and_stored_so(serve: Any, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/kept.db"
    body = {"model": "scripted-chat", "input": LONG, "background": True}
    with serve(store=file, graceful_shutdown_s=0) as server:
        response_id = httpx.post(f"{server.api}/responses", json=body).json()["id"]
    with serve(store=file) as server:
        stored = httpx.get(f"{server.api}/responses/{response_id}").json()
    assert stored["status"] == "failed"
    assert "stopped" in stored["error"]["message"]


def test_a_second_server_leaves_the_runs_of_the_first_alone(serve: Any, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/shared.db"
    body = {"model": "scripted-chat", "input": LONG, "background": True}
    with serve(store=file, graceful_shutdown_s=0) as first:
        response_id = httpx.post(f"{first.api}/responses", json=body).json()["id"]
        with serve(store=file) as second:
            seen = httpx.get(f"{second.api}/responses/{response_id}").json()
        assert seen["status"] == "in_progress"


def test_what_a_killed_server_left_has_failed_at_the_next_start(serve: Any, tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/kept.db"
    body = {"model": "scripted-chat", "input": LONG, "background": True}
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--port", "0", "--store", file],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if " is ready" in line)
        url = ready.partition("url: ")[2].partition(";")[0]
        response_id = httpx.post(f"{url}/responses", json=body).json()["id"]
    finally:
        process.kill()
        process.communicate()
    with serve(store=file) as server:
        stored = httpx.get(f"{server.api}/responses/{response_id}").json()
    assert stored["status"] == "failed"
    assert "stopped" in stored["error"]["message"]
