"""A server that is told to stop: what runs ends, in time, with an end that its client sees."""

from __future__ import annotations

import json
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
