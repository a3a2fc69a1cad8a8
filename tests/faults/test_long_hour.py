"""A long run of calls over MCP servers that fail at random, and a server of ours that is killed.

`ANTIPHON_HOUR_CALLS` sets how many calls a run makes, `ANTIPHON_HOUR_SEEDS` from which seeds.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import (
    LEASE_S,
    Replica,
    background,
    free_port,
    replicas,
    wait_for,
)
from tests.faults.support.rough_road import TOOLS, RoughRoad, rough_server
from tests.http.conftest import MODELS, script

from antiphon.application.tools.calls import LOST

Json = dict[str, Any]

CALLS = int(os.environ.get("ANTIPHON_HOUR_CALLS", "12"))
SEEDS = os.environ.get("ANTIPHON_HOUR_SEEDS", "1").split()
CALLS_PER_TURN = 4
LABELS = ("streamable", "sse", "stdio")
TOOLS_ASKED = [{"type": "mcp", "server_label": label} for label in LABELS]
SECONDS_PER_CALL = 3
TIMEOUT_S = 6.0

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals"),
    pytest.mark.timeout(120 + SECONDS_PER_CALL * CALLS),
]


def turns_of(seed: str) -> list[list[Json]]:
    """Return the calls of a run: each has a text of its own, and its tool tells the server."""
    chance = random.Random(seed)
    calls = [
        {
            "mcp": f"{chance.choice(('note', 'read'))}_{chance.choice(LABELS)}",
            "args": {"text": f"text {number}"},
        }
        for number in range(CALLS)
    ]
    return [calls[first : first + CALLS_PER_TURN] for first in range(0, len(calls), CALLS_PER_TURN)]


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    file = tmp_path / "notes"
    file.touch()
    return file


@pytest.fixture
def roads(seed: str, notes: Path) -> Iterator[dict[str, RoughRoad]]:
    with ExitStack() as stack:
        yield {
            label: stack.enter_context(rough_server(transport, free_port(), seed, notes))
            for label, transport in (("streamable", "streamable-http"), ("sse", "sse"))
        }


@pytest.fixture
def config(tmp_path: Path, seed: str, notes: Path, roads: dict[str, RoughRoad]) -> Path:
    command = [sys.executable, str(TOOLS), "stdio", "0", seed, str(notes)]
    file = tmp_path / "antiphon.toml"
    file.write_text(f"""
        [tools]
        timeout_s = {TIMEOUT_S}
        keep_lists_s = 3600
        max_turns = 1000
        [[mcp_servers]]
        label = "streamable"
        url = "http://127.0.0.1:{roads["streamable"].port}/mcp"
        [[mcp_servers]]
        label = "sse"
        url = "http://127.0.0.1:{roads["sse"].port}/sse"
        [[mcp_servers]]
        label = "stdio"
        command = {json.dumps(command)}
    """)
    return file


@pytest.mark.parametrize("model", MODELS)
def test_a_long_run_over_failing_servers_ends_with_the_answer_and_repeats_no_call(
    tmp_path: Path,
    shared_store: list[str],
    model: str,
    seed: str,
    notes: Path,
    roads: dict[str, RoughRoad],
    config: Path,
) -> None:
    turns = turns_of(seed)
    with replicas(tmp_path, *shared_store, "--config", str(config)) as (victim, other):
        for server in (victim, other):  # with their tools listed, all can be called
            wait_for(lambda server=server: lists_all(server), limit_s=90)
        for road in roads.values():
            road.is_rough = True
        asked = background(
            script(*turns, {"say": f"That was {seed}."}),
            tools=TOOLS_ASKED,
        )
        begun = httpx.post(f"{victim.api}/responses", json={**asked, "model": model}).json()
        path = f"responses/{begun['id']}"
        third = CALLS // 3
        wait_for(
            lambda: len(calls_in(get(victim, path))) >= third or None,
            limit_s=60 + SECONDS_PER_CALL * third,
        )
        victim.kill()
        ended = wait_for(
            lambda: ended_in(get(other, path)), limit_s=LEASE_S + 30 + SECONDS_PER_CALL * CALLS
        )
        check_answer(ended, seed)
        check_calls(ended, [call for turn in turns for call in turn], notes)
        check_log(ended, victim.log() + other.log())
        print(summary_of(ended, seed, model))


def lists_all(server: Replica) -> bool | None:
    body = {"model": MODELS[0], "input": script({"say": "hi"}), "tools": TOOLS_ASKED}
    output = httpx.post(f"{server.api}/responses", json=body, timeout=60).json()["output"]
    listed = [item["tools"] for item in output if item["type"] == "mcp_list_tools"]
    return all(listed) or None


def get(server: Replica, path: str) -> Json:
    response: Json = httpx.get(f"{server.api}/{path}", timeout=30).json()
    return response


def ended_in(response: Json) -> Json | None:
    return None if response["status"] in ("queued", "in_progress") else response


def calls_in(response: Json) -> Sequence[Json]:
    return [item for item in response["output"] if item["type"] == "mcp_call"]


def check_answer(response: Json, seed: str) -> None:
    assert response["status"] == "completed", response["error"]
    assert response["output"][-1]["content"][0]["text"] == f"That was {seed}."


def check_calls(response: Json, asked: Sequence[Json], notes: Path) -> None:
    made = Counter(notes.read_text().splitlines())
    calls = calls_in(response)
    assert [json.loads(call["arguments"]) for call in calls] == [each["args"] for each in asked]
    for call in calls:
        kind, text = call["name"].partition("_")[0], json.loads(call["arguments"])["text"]
        if kind == "note":
            assert made[f"note {text}"] <= 1, f"{text!r} was noted {made[f'note {text}']} times"
        if call["status"] == "completed":
            assert call["output"] == f"{kind}: {text}"
            assert made[f"{kind} {text}"] >= 1
        else:
            assert call["error"], call


def check_log(response: Json, log: str) -> None:
    """Each failure of a call that reached for its server is in the log, with its cause."""
    for call in calls_in(response):
        if (cause := cause_of(call)) is not None:
            line = f"a call at the MCP server {call['server_label']!r} failed: {cause}"
            assert line in log, f"{line!r} is not in the log; the call: {call}"


def cause_of(call: Json) -> str | None:
    error = call["error"]
    if call["status"] == "completed" or error["type"] == "mcp_tool_execution_error":
        return None  # or its server was killed, or was not asked any more
    if error["type"] == "http_error":
        return f"HTTP status {error['code']}"
    return str(
        {-32000: "the connection was lost", -32001: "it did not answer in time"}.get(
            error["code"], f"JSON-RPC error {error['code']}"
        )
    )


def summary_of(response: Json, seed: str, model: str) -> str:
    outcomes = Counter(
        "completed"
        if call["status"] == "completed"
        else cause_of(call) or ("lost with its server" if LOST in str(call) else "not run")
        for call in calls_in(response)
    )
    return f"seed {seed}, {model}: {dict(outcomes)}"
