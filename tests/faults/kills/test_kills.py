"""Servers that are killed at any moment, while many background runs go on."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support import noting_tools
from tests.faults.support.observed_response import ObservedResponse, Reader
from tests.faults.support.replicas import LEASE_S, Replica, background, replicas, wait_for
from tests.support.machine_speed import slowness

from antiphon.application.tools.calls import LOST

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[3]

KILLS = int(os.environ.get("ANTIPHON_TEST_KILLS", "6"))
"""How many servers are killed on each store."""

AT_A_TIME = 20
ENDED_WITHIN_S = LEASE_S + 5 * slowness()
MODELS = ("scripted-chat", "scripted-harmony")
TEXT = "word " * 60
NOTES = {
    "type": "mcp",
    "server_label": "notes",
    "allowed_callers": ["direct", "programmatic"],
}
OPTIONS = ("--tool", "tests.faults.support.noting_tools:Notes", "--run-attempts", "1000")
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
PROGRAMS = {"type": "programmatic_tool_calling"}
PROGRAM = """
const kept = [];
for (const round of [1, 2, 3]) {
  const calls = ["a", "b"].map((name) => tools.notes__note({ text: `NUMBER ${round} ${name}` }));
  kept.push(...(await Promise.allSettled(calls)));
  kept.push(await tools.notes__read({ text: `NUMBER ${round}` }));
}
text(kept.length);
"""
HAS_SANDBOX = shutil.which("bwrap") is not None
CODE_OPTIONS = ("--code-interpreter", "--code-cgroup", "off", "--programs") if HAS_SANDBOX else ()


def body_of(number: int) -> dict[str, Any]:
    """Return a run with reasoning and text or, every other time, a loop over tools, code or a
    program."""
    thought = {"think": "hm "}
    answer = [thought, {"say": "word ", "repeat": 60, "tick": 0.01}]
    calls = [{"mcp": name, "args": {"text": f"{number} {name}"}} for name in ("note", "read")]
    code = [{"call": "python", "args": {"code": f"print({number})"}}]
    program = {"call": "program", "args": {"code": PROGRAM.replace("NUMBER", str(number))}}
    programs = [program, calls[-1]]
    loops = [calls, programs, calls, code] if HAS_SANDBOX else [calls]
    loop = loops[number // 4 % len(loops)]
    turns = [answer] if number % 2 else [[thought, *loop], [thought, loop[-1]], answer]
    return {
        "model": MODELS[number // 2 % len(MODELS)],
        "input": f"@@script {json.dumps(turns)}",
        "background": True,
        "tools": [NOTES, *([CODE] if loop is code else [PROGRAMS] if loop is programs else [])],
    }


class Readers:
    """So many runs at a time, each read to its end."""

    def __init__(self, living: list[Replica], chance: random.Random) -> None:
        self._living = living
        self._chance = chance
        self._started = 0
        self._now: list[Reader] = []
        self.over: list[ObservedResponse] = []

    def _servers(self) -> list[str]:
        found = [replica.api for replica in self._living]
        return sorted(found, key=lambda _: self._chance.random())

    def fill(self) -> None:
        self.collect()
        while len(self._now) < AT_A_TIME:
            self._started += 1
            body, key = body_of(self._started), f"run-{self._started}"
            reader = Reader(body, self._servers, key=key, limit_s=60)
            self._now.append(reader)
            reader.start()

    def collect(self) -> None:
        for reader in [reader for reader in self._now if not reader.is_alive()]:
            self._now.remove(reader)
            if reader.error is not None:
                raise reader.error
            assert reader.watched is not None
            self.over.append(reader.watched)

    def finish(self, limit_s: float) -> None:
        """Wait for all that runs."""
        deadline = time.monotonic() + limit_s
        for reader in list(self._now):
            reader.join(max(0.0, deadline - time.monotonic()))
            assert not reader.is_alive(), "a run is unfinished for longer than it may be"
        self.collect()


@pytest.mark.timeout(60 + 8 * KILLS)
def test_no_run_fails_no_event_is_lost_and_no_call_is_made_twice(
    tmp_path: Path, shared_store: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(KILLS)
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv(noting_tools.NOTES, str(notes))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with replicas(tmp_path, *shared_store, *OPTIONS, *CODE_OPTIONS) as living:
        readers = Readers(living, chance)
        for _ in range(KILLS):
            readers.fill()
            time.sleep(chance.uniform(0.0, 0.7))  # anywhere in the life of the runs
            victim = chance.choice(living)
            victim.kill()
            victim.start()
        readers.fill()
        # What the last kill interrupted is over within the lease and its margin; what was begun
        # meanwhile takes its own time, under a second, on a machine that does all of this.
        readers.finish(ENDED_WITHIN_S + 10)
        ends = Counter(watched.check(chance.choice(living).api) for watched in readers.over)
    responses = [watched.event(watched.last)["response"] for watched in readers.over]
    items = [item for response in responses for item in response["output"]]
    lost = sum(map(is_lost, items))
    code = sum(item["type"] == "code_interpreter_call" for item in items)
    programs = [item for item in items if item["type"] == "program_output"]
    print(
        f"{KILLS} kills, {len(readers.over)} runs: {dict(ends)}, {lost} calls lost, {code} of "
        f"code, {len(programs)} programs"
    )
    assert (code > 0) == (len(programs) > 0) == HAS_SANDBOX
    assert {(each["status"], each["result"]) for each in programs} <= {("completed", "9")}
    assert set(ends) == {"completed"}
    assert {response["output"][-1]["content"][0]["text"] for response in responses} == {TEXT}
    made = Counter(notes.read_text(encoding="utf-8").splitlines())
    assert not [line for line, count in made.items() if line.startswith("note ") and count > 1]


def is_lost(item: dict[str, Any]) -> bool:
    """Whether a call may have run, and was not repeated: never one that may be."""
    if item["type"] != "mcp_call" or not item["error"]:
        return False
    assert item["name"] == "note"
    assert item["error"]["content"] == LOST
    return True


def test_what_a_killed_server_ran_goes_on_within_its_lease(
    tmp_path: Path, shared_store: list[str]
) -> None:
    long = '@@script [[{"say": "word ", "repeat": 60, "tick": 0.05}]]'
    with replicas(tmp_path, *shared_store) as (victim, other):
        asked = background(long, stream=False)
        ids = [
            httpx.post(f"{victim.api}/responses", json=asked).json()["id"] for _ in range(AT_A_TIME)
        ]
        for response_id in ids:
            wait_for(lambda r=response_id: _has_begun(victim, r))
        victim.kill()
        killed_at = time.monotonic()
        for response_id in ids:
            ended = wait_for(lambda r=response_id: _ended(other, r), limit_s=ENDED_WITHIN_S)
            assert ended["status"] == "completed"
            assert ended["output"][0]["content"][0]["text"] == TEXT
        assert time.monotonic() - killed_at < ENDED_WITHIN_S + 5


def _has_begun(replica: Replica, response_id: str) -> bool | None:
    # A reader sees what is committed alone, so text in a stream is text in the log.
    url = f"{replica.api}/responses/{response_id}"
    with httpx.stream("GET", url, params={"stream": "true"}, timeout=10) as answer:
        for line in answer.iter_lines():
            if line == "event: response.output_text.delta":
                return True
    return None


def _ended(replica: Replica, response_id: str) -> dict[str, Any] | None:
    found: dict[str, Any] = httpx.get(f"{replica.api}/responses/{response_id}").json()
    return found if found["status"] not in ("queued", "in_progress") else None
