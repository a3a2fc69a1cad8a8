"""Two whole servers, each with its own vLLM, on one store: one is killed, and its runs go on.

At temperature 0, what the other server goes on with must be what the first would have written.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response
from tests.vllm.test_server import ENDLESS, MODEL, NO_REASONING, Server, running

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

LEASE_S = 3
RUNS = 4
TOKENS = 400
SEEN = 25
"""Pieces of text that have been seen when the server is killed."""
GOES_ON_S = 300
METRICS: Any = ["metrics"]


@pytest.fixture
def pair(models_folder: Path, tmp_path: Path) -> Iterator[list[Server]]:
    shared = ["--store", f"sqlite:///{tmp_path}/shared.db", "--lease-s", str(LEASE_S)]
    shared += ["--seal-key-file", str(tmp_path / "seal.key")]
    with ExitStack() as stack:
        yield [
            stack.enter_context(running(models_folder / "chat", tmp_path / name, *shared))
            for name in ("one", "two")
        ]


def kill(server: Server) -> None:
    """Kill the server with its engine, as if its machine were gone."""
    for pid in [*server.children(), server.process.pid]:
        os.kill(pid, signal.SIGKILL)
    server.process.wait(timeout=30)


def create(client: OpenAI, number: int, **fields: Any) -> Response:
    return client.responses.create(
        model=MODEL,
        input=f"Tell me about the number {number}.",
        temperature=0,
        reasoning=NO_REASONING,
        max_output_tokens=TOKENS,
        extra_body=ENDLESS,
        **fields,
    )


def wait_until_over(client: OpenAI, response_id: str) -> Response:
    deadline = time.monotonic() + GOES_ON_S
    while True:
        response = client.responses.retrieve(response_id, include=METRICS)
        if response.status not in ("queued", "in_progress"):
            return response
        assert time.monotonic() < deadline, response


def test_the_runs_of_a_killed_server_end_with_the_texts_that_they_would_have_had(
    pair: list[Server],
) -> None:
    first, second = pair
    undisturbed = [create(second.client, number).output_text for number in range(RUNS)]
    assert len(set(undisturbed)) == RUNS, "each prompt has a text of its own"
    runs = [create(first.client, number, background=True).id for number in range(RUNS)]
    events: list[Any] = []
    deltas: list[str] = []
    with second.client.responses.retrieve(runs[-1], stream=True) as stream:
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
                if len(deltas) == SEEN:
                    kill(first)
    ended = [wait_until_over(second.client, run) for run in runs]
    assert [response.output_text for response in ended] == undisturbed
    assert {response.status for response in ended} == {"incomplete"}, "at their limit of tokens"
    for response in ended:
        metrics: Any = response.model_extra["metrics"] if response.model_extra else None
        assert metrics["epoch"] == 2, "the second server had it"
        assert 0 < sum(turn.get("resumed_tokens", 0) for turn in metrics["turns"]) < TOKENS
    # Who follows a run at the other server sees no seam.
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(deltas) == undisturbed[-1]
