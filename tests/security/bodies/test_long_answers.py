"""A small request for a very long answer freezes nobody and leaves no memory.

`ANTIPHON_TEST_LONG_ANSWERS` says how many there are of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.security.support.server_probe import (
    BUSY_FACTOR,
    MAX_GROWTH_BYTES,
    ProbedServer,
    probe_server,
)

pytestmark = pytest.mark.faults

ROUNDS = int(os.environ.get("ANTIPHON_TEST_LONG_ANSWERS", "4"))
LIMIT_S = 120
TRIES = 3
USUAL = {"model": "scripted-chat", "input": "hi"}
ENDLESS = {**USUAL, "ignore_eos": True}
LOGPROBS = {"top_logprobs": 20, "include": ["message.output_text.logprobs"]}

KINDS: Mapping[str, Mapping[str, Any]] = {
    "whole": ENDLESS,
    "stream": {**ENDLESS, "stream": True},
    "logprobs": {**ENDLESS, **LOGPROBS},
    "logprobs, unstored": {**ENDLESS, **LOGPROBS, "store": False},
    "stream of logprobs": {**ENDLESS, **LOGPROBS, "stream": True},
    "background": {**ENDLESS, **LOGPROBS, "stream": True, "background": True},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ProbedServer]:
    with probe_server(tmp_path, "--store", "sqlite", "--keep-events", "0") as probed:
        yield probed


@pytest.mark.parametrize("kind", KINDS)
def test_a_very_long_answer_freezes_nobody_and_leaves_no_memory(
    server: ProbedServer, kind: str
) -> None:
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        with server.watch() as usual:
            _send(client, {**USUAL, "stream": True}, times=100)
        _send(client, KINDS[kind], times=ROUNDS)
        # Again, if it froze: others that use the machine do not come back each time.
        for _ in range(TRIES):
            with server.watch() as seen:
                _send(client, KINDS[kind], times=ROUNDS)
            # Twice the usual limit: one event takes 10 to 30 ms to encode, by the machine.
            max_freeze_s = max(2 * seen.max_freeze_s, BUSY_FACTOR * usual.freeze_s)
            if seen.freeze_s < max_freeze_s:
                break
    print(
        f"{kind}: freeze {seen.freeze_s:.3f} s, with usual answers {usual.freeze_s:.3f} s; "
        f"growth {seen.growth_bytes / 2**20:.1f} MB"
    )
    assert seen.growth_bytes < MAX_GROWTH_BYTES
    assert seen.freeze_s < max_freeze_s


def test_reading_a_very_long_answer_again_freezes_nobody(tmp_path: Path) -> None:
    with (
        probe_server(tmp_path, "--store", "sqlite", "--keep-events", "0") as server,
        httpx.Client(base_url=server.url, timeout=LIMIT_S) as client,
    ):
        client.post("/v1/responses", json={**ENDLESS, **LOGPROBS, "background": True})
        created = client.get("/v1/responses").json()["data"][0]["id"]
        stream = _read(client, created, stream=True)
        # The next responses push its events out of the memory, so they are read from the store.
        _send(client, USUAL, times=3)
        with server.watch() as seen:
            for _ in range(ROUNDS):
                assert _read(client, created, stream=True) == stream
                assert _read(client, created)["status"] == "incomplete"
    assert seen.growth_bytes < MAX_GROWTH_BYTES
    assert seen.freeze_s < 2 * seen.max_freeze_s


def _read(client: httpx.Client, response_id: str, *, stream: bool = False) -> Any:
    answer = client.get(f"/v1/responses/{response_id}", params={"stream": stream})
    assert answer.status_code == 200
    return answer.content if stream else answer.json()


def _send(client: httpx.Client, body: Mapping[str, Any], *, times: int) -> None:
    for _ in range(times):
        with client.stream("POST", "/v1/responses", json=body) as answer:
            assert answer.status_code == 200
            for _ in answer.iter_raw():
                pass
    # The events of the last response are kept until the next one begins.
    assert client.post("/v1/responses", json=USUAL).is_success
