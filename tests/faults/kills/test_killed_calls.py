"""A server is killed while it runs a command: what was told stays, and the model goes on."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import LEASE_S, background, frames_of, replicas, stream, wait_for
from tests.golden.test_golden_flows import check_order

from antiphon.application.tools.calls import LOST

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bwrap on this machine"),
]

Json = dict[str, Any]
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
SLEEP = "601.25"
"""Seconds that no other process of this machine sleeps."""

TURN = {"call": "shell", "args": {"commands": [f"echo first; sleep {SLEEP}"]}}


def is_asleep() -> bool:
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.read_bytes().split(b"\0")[:2] == [b"sleep", SLEEP.encode()]:
                return True
        except OSError:
            continue
    return False


def test_a_command_of_a_killed_server_is_not_run_again_and_the_model_is_told(
    tmp_path: Path, shared_store: list[str]
) -> None:
    options = [*shared_store, "--shell", "--code-cgroup", "off"]
    with replicas(tmp_path, *options) as (victim, other):
        asked = background(f"@@script {json.dumps([TURN, {'say': 'no'}])}", tools=[SHELL])
        begun: Json = httpx.post(f"{victim.api}/responses", json=asked).json()
        url = f"/responses/{begun['id']}"
        before = told_until_first(f"{victim.api}{url}")
        wait_for(lambda: is_asleep() or None)
        victim.kill()
        ended = wait_for(lambda: over(f"{other.api}{url}"), limit_s=LEASE_S + 15)
        assert ended["status"] == "completed"
        statuses = [item["status"] for item in ended["output"]]
        assert statuses == ["completed", "incomplete", "completed"]
        [kept] = ended["output"][1]["output"]
        assert kept["stdout"] == "first\n"
        assert LOST in kept["stderr"]
        assert ended["output"][2]["content"][0]["text"] == "no"
        wait_for(lambda: None if is_asleep() else True)
        told = [
            json.loads(frame.partition(b"data: ")[2])
            for frame in frames_of(stream(other.api, begun["id"])).values()
        ]
        assert told[: len(before)] == before
        check_order(told)
        again = {"role": "user", "content": '@@script [{"say": "On."}]'}
        body = {"model": asked["model"], "input": [*ended["output"], again], "tools": [SHELL]}
        answer = httpx.post(f"{other.api}/responses", json=body)
        assert answer.json()["output"][-1]["content"][0]["text"] == "On.", answer.text


def told_until_first(url: str) -> list[Json]:
    told: list[Json] = []
    limit = time.monotonic() + 30
    with httpx.stream("GET", url, params={"stream": "true"}, timeout=30) as answer:
        for line in answer.iter_lines():
            assert time.monotonic() < limit
            if line.startswith("data: {"):
                told.append(json.loads(line.removeprefix("data: ")))
                if told[-1]["type"] == "response.shell_call_output_content.delta":
                    break
    return told


def over(url: str) -> Json | None:
    found: Json = httpx.get(url).json()
    return found if found["status"] not in ("queued", "in_progress") else None
