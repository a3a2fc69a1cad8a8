"""A server's heartbeat, and what happens when the store misses beats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.runs.heartbeat import Heartbeat
from antiphon.domain.errors import StoreError


class BeatStore(MemoryStore):
    """Records the beats; they fail while `is_away`."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[str, float, str]] = []
        self.is_away = False

    def record_heartbeat(self, owner: str, ttl_s: float) -> None:
        self.beats.append((owner, ttl_s, threading.current_thread().name))
        if self.is_away:
            raise StoreError("no route to the store")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def heartbeat_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "antiphon-heartbeat"}


def test_the_first_beat_is_written_on_start_and_later_ones_in_a_thread() -> None:
    store, others = BeatStore(), heartbeat_threads()  # a fixture's server may have one
    heartbeat = Heartbeat(store, "srv_1", lease_s=0.03)
    heartbeat.start()
    assert store.beats[0] == ("srv_1", 0.03, "MainThread")
    wait_until(lambda: len(store.beats) > 3)
    assert store.beats[-1] == ("srv_1", 0.03, "antiphon-heartbeat")
    heartbeat.stop()
    count = len(store.beats)
    assert heartbeat_threads() == others
    assert len(store.beats) == count


def test_the_heartbeat_survives_an_outage_and_logs_it_once(caplog: Any) -> None:
    caplog.set_level("INFO", "antiphon.runs")
    store = BeatStore()
    heartbeat = Heartbeat(store, "srv_1", lease_s=0.03)
    heartbeat.start()
    store.is_away = True
    count = len(store.beats)
    wait_until(lambda: len(store.beats) > count + 4)
    store.is_away = False
    wait_until(lambda: "recovered" in caplog.text)
    heartbeat.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "no route to the store" in caplog.text


def test_a_beat_that_failed_is_tried_again_soon() -> None:
    store = BeatStore()
    heartbeat = Heartbeat(store, "srv_1", lease_s=0.6, retry_s=0.001)
    heartbeat.start()
    store.is_away = True
    wait_until(lambda: len(store.beats) > 1)
    began = time.monotonic()
    wait_until(lambda: len(store.beats) > 6)
    assert time.monotonic() - began < 0.6
    heartbeat.stop()


def test_after_an_outage_the_other_servers_have_one_lease_to_beat_again() -> None:
    store, now = BeatStore(), [0.0]
    heartbeat = Heartbeat(store, "srv_1", lease_s=0.03, clock=lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds
        count = len(store.beats)
        wait_until(lambda: len(store.beats) > count + 1)

    heartbeat.start()
    pass_time(0.01)
    assert heartbeat.is_healthy()
    store.is_away = True
    pass_time(0.01)
    assert heartbeat.is_healthy(), "one beat may fail"
    pass_time(0.02)
    assert not heartbeat.is_healthy()
    store.is_away = False
    for _ in range(3):
        pass_time(0.01)
        assert not heartbeat.is_healthy()
    pass_time(0.01)
    assert heartbeat.is_healthy()
    heartbeat.stop()
