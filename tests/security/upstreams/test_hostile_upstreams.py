"""A model server that attacks its clients: this server stays small and answers others in time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.security.support.hostile_upstream import ATTACKS, HostileUpstream, hostile_upstream
from tests.security.support.server_probe import (
    BUSY_FACTOR,
    Observation,
    ProbedServer,
    probe_server,
)

pytestmark = pytest.mark.faults

MAX_GROWTH_BYTES = 200_000_000
MAX_WAIT_S = 0.1
STREAMS = {"logprobs-of-many-tokens": 2}
"""Those of a response take 25 MB by themselves."""
USUAL_STREAMS = 4
ATTACK_S = float(os.environ.get("ANTIPHON_TEST_ATTACK_S", "3"))
TRIES = 3
SCRIPTED = '\n[[models]]\nname = "scripted-chat"\nengine = "scripted"\n'


@pytest.fixture(scope="module")
def upstream() -> Iterator[HostileUpstream]:
    with hostile_upstream() as server:
        yield server


class Attacked:
    """The answers that a client of the attacking model reads, over several connections."""

    def __init__(self, server: ProbedServer, model: str) -> None:
        self._server = server
        self._model = model
        self._is_over = threading.Event()
        self.ends: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_answers, daemon=True)
            for _ in range(STREAMS.get(model, USUAL_STREAMS))
        ]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send nothing more; what is being read ends with the server."""
        self._is_over.set()

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _read_answers(self) -> None:
        try:
            self._read_until_over()
        except httpx.TransportError:
            if not self._is_over.is_set():
                raise

    def _read_until_over(self) -> None:
        body = {"model": self._model, "input": "hi", "stream": True, "store": False}
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
        url = f"{self._server.url}/v1/responses"
        while not self._is_over.is_set():
            with httpx.stream("POST", url, json=body, timeout=60) as answer:
                end = b""
                for part in answer.iter_bytes():
                    end = (end + part)[-200_000:]
                    if self._is_over.is_set():
                        return
                self.ends.append(end.decode(errors="replace"))


def short_requests(server: ProbedServer, seconds: float) -> list[float]:
    """Return how long each short request of another client takes meanwhile."""
    waits, end = [], time.monotonic() + seconds
    with httpx.Client(timeout=120) as client:
        while time.monotonic() < end:
            sent_at = time.monotonic()
            body = {"model": "scripted-chat", "input": "hi", "store": False}
            client.post(f"{server.url}/v1/responses", json=body).raise_for_status()
            waits.append(time.monotonic() - sent_at)
            time.sleep(0.01)
    return waits


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_answer_without_an_end_fills_no_memory_and_keeps_nobody_waiting(
    attack: str, upstream: HostileUpstream, tmp_path: Path
) -> None:
    file = upstream.write_settings(tmp_path / "models.toml", [attack])
    file.write_text(file.read_text(encoding="utf-8") + SCRIPTED, encoding="utf-8")
    # Again, if others waited: what else uses the machine does not come back each time.
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        seen, usual, waits = attacked_by(attack, file, folder)
        assert seen.peak_growth_bytes < MAX_GROWTH_BYTES
        limit_s = seen.limit(MAX_WAIT_S)
        if seen.freeze_s <= limit_s and waits[len(waits) // 2] <= limit_s:
            break
    assert seen.freeze_s <= limit_s
    assert waits[len(waits) // 2] <= max(limit_s, BUSY_FACTOR * usual)


def attacked_by(
    attack: str, settings: Path, folder: Path
) -> tuple[Observation, float, list[float]]:
    """Return what was seen, the usual wait of others, and their waits meanwhile, in order."""
    with probe_server(folder, "--config", str(settings)) as server:
        usual = max(short_requests(server, 1))
        attacked = Attacked(server, attack)
        with server.watch(give_back_s=0) as seen:
            attacked.run()
            waits = sorted(short_requests(server, ATTACK_S))
            attacked.stop()
    attacked.wait()
    print(
        f"{attack}: {usual * 1000:.0f} -> median {waits[len(waits) // 2] * 1000:.0f} ms, "
        f"at most {waits[-1] * 1000:.0f} ms; {len(attacked.ends)} answers"
    )
    return seen, usual, waits
