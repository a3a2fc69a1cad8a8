"""A run on real weights whose server is killed goes on at another one, to the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import Replica, replicas, wait_for

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

KILLED_AFTER = 30
"""Deltas of 100: the other server begins in the middle."""
BODY = {
    "model": "small",
    "temperature": 0,
    "max_output_tokens": 100,
    "background": True,
    "stream": True,
}
CASES: dict[str, dict[str, Any]] = {
    "text": {"input": "Tell me a tale of a fox and a well."},
    "a schema": {
        "input": "Tell me a tale of a fox and a well, in JSON.",
        "text": {
            "format": {
                "type": "json_schema",
                "name": "tale",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {
                        "title": {"type": "string"},
                        "lines": {"type": "array", "items": {"type": "string"}, "minItems": 9},
                    },
                    "required": ["title", "lines"],
                    "additionalProperties": False,
                },
            }
        },
    },
}


@pytest.fixture(scope="module")
def servers(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    folder = tmp_path_factory.mktemp("servers")
    settings = folder / "antiphon.toml"
    settings.write_text(
        f"[[models]]\nname = 'small'\nengine = 'llama'\nmodel = '{weights}'\nrepeatable = true\n"
    )
    with replicas(folder, "--config", str(settings), "--store", "sqlite") as started:
        yield started


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))


def text_of(response: dict[str, Any]) -> str:
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def finished(server: Replica, response_id: str) -> dict[str, Any] | None:
    response = httpx.get(f"{server.api}/responses/{response_id}").json()
    return response if response["status"] in ("completed", "incomplete", "failed") else None


@pytest.mark.parametrize("case", CASES)
def test_a_killed_run_goes_on_to_the_text_of_an_unkilled_one(
    servers: list[Replica], case: str
) -> None:
    first, second = servers
    body = {**BODY, **CASES[case]}
    with httpx.stream("POST", f"{second.api}/responses", json=body, timeout=120) as stream:
        unkilled = list(events_of(stream.iter_lines()))
    with httpx.stream("POST", f"{first.api}/responses", json=body, timeout=120) as stream:
        deltas, response_id = 0, ""
        for event in events_of(stream.iter_lines()):
            response_id = response_id or event["response"]["id"]
            deltas += event["type"] == "response.output_text.delta"
            if deltas == KILLED_AFTER:
                first.kill()
                break
    went_on = wait_for(lambda: finished(second, response_id), limit_s=90)
    expected = unkilled[-1]["response"]
    assert (went_on["status"], text_of(went_on)) == (expected["status"], text_of(expected))
    with httpx.stream("GET", f"{second.api}/responses/{response_id}?stream=true") as stream:
        replayed = list(events_of(stream.iter_lines()))
    assert [event["sequence_number"] for event in replayed] == list(range(len(replayed)))
    deltas_of = (e["delta"] for e in replayed if e["type"] == "response.output_text.delta")
    assert "".join(deltas_of) == text_of(went_on)
    first.start()
