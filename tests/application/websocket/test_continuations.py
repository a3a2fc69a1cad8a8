"""The responses that a connection remembers: the latest of each lane, up to a limit of bytes."""

from __future__ import annotations

from msgspec import Raw

from antiphon.application.ports import StoredItem
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.websocket.continuations import Continuations


def make_continuations() -> Continuations:
    work = BytesInWork()
    return Continuations(work.hold("t", "histories"), work, max_bytes=100)


def items(size: int = 10) -> list[StoredItem]:
    return [StoredItem(id="msg_1", raw=Raw(b"x" * size))]


def test_only_the_latest_of_a_lane_is_remembered() -> None:
    continuations = make_continuations()
    for lane, response in (("a", "r1"), ("b", "r2"), ("a", "r3"), (None, "r4")):
        continuations.keep(lane, response, items())
    assert set(continuations.remembered) == {"r2", "r3", "r4"}


def test_a_stored_response_replaces_the_latest_of_its_lane() -> None:
    continuations = make_continuations()
    continuations.keep("a", "r1", items())
    continuations.forget("a")
    assert not continuations.remembered


def test_a_failed_continuation_evicts_on_its_own_lane_only() -> None:
    continuations = make_continuations()
    continuations.keep("a", "r1", items())
    continuations.evict("b", "r1")
    continuations.evict("a", "r0")
    continuations.evict("a", None)
    assert set(continuations.remembered) == {"r1"}
    continuations.evict("a", "r1")
    assert not continuations.remembered


def test_over_the_limit_the_oldest_response_is_forgotten_first() -> None:
    continuations = make_continuations()
    continuations.keep("a", "r1", items(60))
    continuations.keep("b", "r2", items(40))
    assert set(continuations.remembered) == {"r1", "r2"}
    continuations.keep("c", "r3", items(1))
    assert set(continuations.remembered) == {"r2", "r3"}
    continuations.keep("d", "r4", items(101))
    assert not continuations.remembered


def test_remembered_responses_do_not_change_afterward() -> None:
    continuations = make_continuations()
    continuations.keep("a", "r1", items())
    remembered = continuations.remembered
    continuations.evict("a", "r1")
    assert set(remembered) == {"r1"}


def test_the_connections_of_a_tenant_leave_it_room_for_other_work() -> None:
    work = BytesInWork(200)  # half of it for one tenant
    first, second = (
        Continuations(work.hold("t", "histories", free=0), work, max_bytes=100) for _ in range(2)
    )
    first.keep("a", "r1", items(20))
    second.keep("a", "r2", items(20))
    second.keep("b", "r3", items(20))
    assert set(first.remembered) == {"r1"}
    assert set(second.remembered) == {"r3"}
    assert work.total == 40
