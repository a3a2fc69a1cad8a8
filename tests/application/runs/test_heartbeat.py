"""The sign of life of a server, and what is said when it cannot be given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from antiphon.adapters.stores.memory import MemoryStore
from antiphon.application.runs.heartbeat import Heartbeat
from antiphon.domain.errors import StoreError


class Beaten(MemoryStore):
    """Counts its beats, and may take none."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[str, float, str]] = []
        self.is_away = False

    def beat(self, owner: str, ttl_s: float) -> None:
        self.beats.append((owner, ttl_s, threading.current_thread().name))
        if self.is_away:
            raise StoreError("no route to the store")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_it_beats_before_anything_runs_and_then_in_a_thread_of_its_own() -> None:
    store = Beaten()
    heartbeat = Heartbeat(store, "srv_1", lease_s=0.03)
    heartbeat.start()
    assert store.beats[0] == ("srv_1", 0.03, "MainThread")
    until(lambda: len(store.beats) > 3)
    assert store.beats[-1] == ("srv_1", 0.03, "antiphon-heartbeat")
    heartbeat.stop()
    count = len(store.beats)
    assert not any(thread.name == "antiphon-heartbeat" for thread in threading.enumerate())
    assert len(store.beats) == count


def test_an_outage_is_told_of_once_and_survived(caplog: Any) -> None:
    caplog.set_level("INFO", "antiphon.runs")
    store = Beaten()
    heartbeat = Heartbeat(store, "srv_1", lease_s=0.03)
    heartbeat.start()
    store.is_away = True
    count = len(store.beats)
    until(lambda: len(store.beats) > count + 4)
    store.is_away = False
    until(lambda: "recovered" in caplog.text)
    heartbeat.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "no route to the store" in caplog.text


def test_after_an_outage_the_others_have_a_lease_to_say_that_they_live() -> None:
    store, now = Beaten(), [0.0]
    heartbeat = Heartbeat(store, "srv_1", lease_s=0.03, clock=lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds
        count = len(store.beats)
        until(lambda: len(store.beats) > count + 1)

    heartbeat.start()
    passes(0.01)
    assert heartbeat.is_healthy()
    store.is_away = True
    passes(0.01)
    assert heartbeat.is_healthy(), "one beat may fail"
    passes(0.02)
    assert not heartbeat.is_healthy()
    store.is_away = False
    for _ in range(3):
        passes(0.01)
        assert not heartbeat.is_healthy()
    passes(0.01)
    assert heartbeat.is_healthy()
    heartbeat.stop()
