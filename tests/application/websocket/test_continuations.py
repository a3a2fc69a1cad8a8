"""What a connection remembers by itself: the latest of each lane, within a bound of bytes."""

from __future__ import annotations

from msgspec import Raw

from antiphon.application.ports import StoredItem
from antiphon.application.websocket.continuations import Continuations


def items(size: int = 10) -> list[StoredItem]:
    return [StoredItem(id="msg_1", raw=Raw(b"x" * size))]


def test_only_the_latest_of_a_lane_is_remembered() -> None:
    memory = Continuations(max_bytes=100)
    for lane, response in (("a", "r1"), ("b", "r2"), ("a", "r3"), (None, "r4")):
        memory.keep(lane, response, items())
    assert set(memory.remembered) == {"r2", "r3", "r4"}


def test_a_response_that_the_store_keeps_takes_the_place_of_the_lanes_latest() -> None:
    memory = Continuations(max_bytes=100)
    memory.keep("a", "r1", items())
    memory.forget("a")
    assert not memory.remembered


def test_a_failed_continuation_evicts_on_its_own_lane_only() -> None:
    memory = Continuations(max_bytes=100)
    memory.keep("a", "r1", items())
    memory.evict("b", "r1")
    memory.evict("a", "r0")
    memory.evict("a", None)
    assert set(memory.remembered) == {"r1"}
    memory.evict("a", "r1")
    assert not memory.remembered


def test_over_the_bound_the_oldest_goes_first() -> None:
    memory = Continuations(max_bytes=100)
    memory.keep("a", "r1", items(60))
    memory.keep("b", "r2", items(40))
    assert set(memory.remembered) == {"r1", "r2"}
    memory.keep("c", "r3", items(1))
    assert set(memory.remembered) == {"r2", "r3"}
    memory.keep("d", "r4", items(101))
    assert not memory.remembered


def test_what_was_looked_up_does_not_change() -> None:
    memory = Continuations(max_bytes=100)
    memory.keep("a", "r1", items())
    seen = memory.remembered
    memory.evict("a", "r1")
    assert set(seen) == {"r1"}
