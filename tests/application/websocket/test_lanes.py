"""Lanes by themselves: order within one, many side by side, and bounds that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.application.websocket.lanes import LaneLimits, Lanes, lane_of
from antiphon.domain.errors import QueueFull, RequestError


def lanes(**limits: int) -> Lanes[str]:
    return Lanes(LaneLimits(**limits))


def taken(lanes: Lanes[str]) -> list[str]:
    """Take all that may run now."""
    found = []
    while (one := lanes.take()) is not None:
        found.append(one[1])
    return found


def test_a_lane_runs_one_request_after_the_other_in_order() -> None:
    one = lanes()
    for request in ("first", "second", "third"):
        one.add("a", request)
    order = []
    while got := taken(one):
        order.append(got)
        one.leave("a")
    assert order == [["first"], ["second"], ["third"]]


def test_lanes_run_side_by_side_and_the_nameless_one_is_a_lane_too() -> None:
    several = lanes()
    for lane, request in (("a", "a1"), ("a", "a2"), (None, "n1"), ("b", "b1")):
        several.add(lane, request)
    assert taken(several) == ["a1", "n1", "b1"]


def test_what_is_over_the_limit_waits_and_the_oldest_goes_first() -> None:
    two = lanes(running=2)
    for lane in ("a", "b", "c", "d"):
        two.add(lane, lane)
    assert taken(two) == ["a", "b"]
    two.leave("b")
    assert taken(two) == ["c"]


def test_names_are_bounded_but_the_nameless_lane_is_none_of_them() -> None:
    two = lanes(named=2)
    for lane in ("a", "b", None, "a"):
        two.add(lane, "x")
    with pytest.raises(RequestError) as refused:
        two.add("c", "x")
    assert refused.value.code == "websocket_stream_limit_reached"
    two.add("b", "x")


@pytest.mark.parametrize(("limits", "size"), [({"waiting": 2}, 0), ({"waiting_bytes": 20}, 10)])
def test_waiting_requests_are_bounded_by_count_and_by_bytes(
    limits: dict[str, int], size: int
) -> None:
    few = lanes(running=1, **limits)
    few.add("a", "running", size=size)
    assert taken(few) == ["running"]
    few.add("a", "waits", size=size)
    few.add("b", "waits too", size=size)
    with pytest.raises(QueueFull):
        few.add("c", "one too many", size=size)
    few.leave("a")
    assert taken(few) == ["waits"]


def test_a_request_that_may_run_at_once_needs_no_room_to_wait() -> None:
    none = lanes(waiting=0)
    none.add("a", "runs")
    assert taken(none) == ["runs"]


def test_a_refused_request_leaves_no_name_behind() -> None:
    tight = lanes(running=1, named=2, waiting=0)
    tight.add("a", "runs")
    assert taken(tight) == ["runs"]
    for name in ("b", "c", "d"):
        with pytest.raises(QueueFull):
            tight.add(name, "refused")


def test_clearing_tells_the_lanes_of_what_waited() -> None:
    one = lanes()
    for lane in ("a", "a", None, None):
        one.add(lane, "x")
    assert len(taken(one)) == 2
    assert one.clear() == ["a", None]
    one.leave("a")
    assert taken(one) == []


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 256])
def test_a_good_name_is_its_lane(name: str) -> None:
    assert lane_of(name) == name


@pytest.mark.parametrize("name", ["", "a b", "ä", "a\n", "x" * 257, 1, [], {"a": 1}, True])
def test_a_bad_name_is_refused(name: Any) -> None:
    with pytest.raises(RequestError) as refused:
        lane_of(name)
    assert (refused.value.param, refused.value.code) == ("stream_id", "invalid_stream_id")
