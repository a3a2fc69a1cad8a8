"""A server is killed while guards hold text back: what was shown stays, and they are asked about
the rest by the server that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import LEASE_S, background, frames_of, replicas, stream, wait_for
from tests.faults.support.signing_guard import WORD
from tests.golden.test_golden_flows import check_order

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[3]
OPTIONS = (
    *("--guard", "tests.faults.support.signing_guard:SigningGuard"),
    *("--guards-window", "20"),
)
REPEATS = 60


@pytest.mark.parametrize("model", ["scripted-chat", "scripted-harmony"])
def test_what_was_shown_stays_and_the_rest_is_asked_about_by_the_next_server(
    tmp_path: Path, shared_store: list[str], monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    turn = {"say": f"one {WORD} ", "repeat": REPEATS, "tick": 0.02}
    with replicas(tmp_path, *shared_store, *OPTIONS) as (victim, other):
        pids = victim.pid, other.pid
        asked = {**background(f"@@script {json.dumps([turn])}"), "model": model}
        begun: dict[str, Any] = httpx.post(f"{victim.api}/responses", json=asked).json()
        before = until_signed(f"{victim.api}/responses/{begun['id']}", victim.pid)
        victim.kill()

        def over() -> dict[str, Any] | None:
            found: dict[str, Any] = httpx.get(f"{other.api}/responses/{begun['id']}").json()
            return found if found["status"] not in ("queued", "in_progress") else None

        ended = wait_for(over, limit_s=LEASE_S + 30)
        told = [
            json.loads(frame.partition(b"data: ")[2])
            for frame in frames_of(stream(other.api, begun["id"])).values()
        ]
    assert ended["status"] == "completed", ended
    [message] = [item for item in ended["output"] if item["type"] == "message"]
    text = message["content"][0]["text"]
    assert WORD not in json.dumps([told[1:], ended["output"]]).replace(turn["say"], "")
    assert told[: len(before)] == before
    check_order(told)
    signed = [text.count(f"<{pid}>") for pid in pids]
    assert min(signed) > 0, "each server was asked"
    assert sum(signed) == REPEATS


def until_signed(url: str, pid: int) -> list[dict[str, Any]]:
    """Return the events until the text has been replaced several times."""
    told: list[dict[str, Any]] = []
    with httpx.stream("GET", url, params={"stream": "true"}, timeout=30) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                told.append(json.loads(line.removeprefix("data: ")))
                texts = "".join(event.get("delta", "") for event in told)
                if texts.count(f"<{pid}>") >= 5:
                    return told
    raise AssertionError("the response ended too soon")
