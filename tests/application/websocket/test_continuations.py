"""The responses that a connection remembers: the latest of each lane, up to a limit of bytes."""

from __future__ import annotations

from msgspec import Raw

from antiphon.application.ports import StoredItem
from antiphon.application.websocket.continuations import Continuations


def items(size: int = 10) -> list[StoredItem]:
    return [StoredItem(id="msg_1", raw=Raw(b"x" * size))]


def test_only_the_latest_of_a_lane_is_remembered() -> None:
    continuations = Continuations(max_bytes=100)
    for lane, response in (("a", "r1"), ("b", "r2"), ("a", "r3"), (None, "r4")):
        continuations.keep(lane, response, items())
    assert set(continuations.remembered) == {"r2", "r3", "r4"}


def test_a_stored_response_replaces_the_latest_of_its_lane() -> None:
    continuations = Continuations(max_bytes=100)
    continuations.keep("a", "r1", items())
    continuations.forget("a")
    assert not continuations.remembered


def test_a_failed_continuation_evicts_on_its_own_lane_only() -> None:
    continuations = Continuations(max_bytes=100)
    continuations.keep("a", "r1", items())
    continuations.evict("b", "r1")
    continuations.evict("a", "r0")
    continuations.evict("a", None)
    assert set(continuations.remembered) == {"r1"}
    continuations.evict("a", "r1")
    assert not continuations.remembered


def test_over_the_limit_the_oldest_response_is_forgotten_first() -> None:
    continuations = Continuations(max_bytes=100)
    continuations.keep("a", "r1", items(60))
    continuations.keep("b", "r2", items(40))
    assert set(continuations.remembered) == {"r1", "r2"}
    continuations.keep("c", "r3", items(1))
    assert set(continuations.remembered) == {"r2", "r3"}
    continuations.keep("d", "r4", items(101))
    assert not continuations.remembered


def test_remembered_responses_do_not_change_afterward() -> None:
    continuations = Continuations(max_bytes=100)
    continuations.keep("a", "r1", items())
    remembered = continuations.remembered
    continuations.evict("a", "r1")
    assert set(remembered) == {"r1"}
