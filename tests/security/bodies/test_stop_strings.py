"""Stop strings of a request stall nobody, however long the answer is."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.security.support.server_probe import probe_server

SCRIPTED_FACTOR = 3
"""The scripted engine prepares a whole answer at once. It took half a minute at first, and then 0.1
to 0.3 s."""

STOPS = [f"{'a' * 1000}{number}" for number in range(60)]


@pytest.mark.faults
@pytest.mark.parametrize("model", ["scripted-chat", "scripted-harmony"])
def test_stop_strings_stall_nobody(tmp_path: Path, model: str) -> None:
    body = {"model": model, "input": "a" * 500, "stop": STOPS, "ignore_eos": True, "stream": True}
    with probe_server(tmp_path, "--store", "memory") as server:
        first = {"model": model, "input": "hi"}  # loads what a model needs
        httpx.post(f"{server.url}/v1/responses", json=first, timeout=50).raise_for_status()
        with server.watch() as seen:
            limited = {**body, "max_output_tokens": 4000}
            answer = httpx.post(f"{server.url}/v1/responses", json=limited, timeout=50)
        assert answer.status_code == 200, answer.text
        assert "response.created" in answer.text
    assert seen.freeze_s < SCRIPTED_FACTOR * seen.max_freeze_s


def test_a_stop_string_has_a_bound(server: object) -> None:
    url = f"{server.api}/responses"  # type: ignore[attr-defined]
    for stop, param in (("a" * 1025, "stop"), (["a" * 1025], "stop")):
        answer = httpx.post(url, json={"model": "scripted-chat", "input": "hi", "stop": stop})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(param)
