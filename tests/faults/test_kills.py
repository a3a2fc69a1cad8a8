"""Servers that are killed at any moment, while many background runs go on."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.observed_response import ObservedResponse, Reader
from tests.faults.replicas import LEASE_S, Replica, background, replicas, wait_for

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("ANTIPHON_TEST_KILLS", "6"))
"""How many servers are killed on each store; the project's own check sets it to 40."""

AT_A_TIME = 20
ENDED_WITHIN_S = LEASE_S + 5
RUN = '@@script [[{"think": "hm "}, {"say": "word ", "repeat": 60, "tick": 0.01}]]'


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
            reader = Reader(background(RUN), self._servers, key=f"run-{self._started}", limit_s=60)
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
def test_no_event_is_lost_and_no_run_stays_unfinished(
    tmp_path: Path, shared_store: list[str]
) -> None:
    chance = random.Random(KILLS)
    with replicas(tmp_path, *shared_store) as living:
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
    print(f"{KILLS} kills, {len(readers.over)} runs: {dict(ends)}")
    assert ends["completed"] > 0
    assert set(ends) <= {"completed", "failed"}


def test_what_a_killed_server_ran_is_over_within_its_lease(
    tmp_path: Path, shared_store: list[str]
) -> None:
    long = '@@script [[{"say": "word ", "repeat": 2000, "tick": 0.05}]]'
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
            assert (ended["status"], ended["error"]["code"]) == ("failed", "server_restarted")
            assert ended["output"][0]["status"] == "incomplete", "what it wrote is kept"
        assert time.monotonic() - killed_at < ENDED_WITHIN_S


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
