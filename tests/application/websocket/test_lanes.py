"""Lanes: the order within one, several side by side, and limits that change nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.websocket.lanes import LaneLimits, Lanes, lane_of
from antiphon.domain.errors import ConcurrencyLimitExceeded, RequestError


def make_lanes(**limits: int) -> Lanes[str]:
    return Lanes(LaneLimits(**limits), BytesInWork().hold("t", "requests"))


def take_all(lanes: Lanes[str]) -> list[str]:
    """Take all requests that may run now."""
    requests = []
    while (lane_and_request := lanes.take()) is not None:
        requests.append(lane_and_request[1])
    return requests


def test_a_lane_runs_its_requests_one_after_another() -> None:
    lanes = make_lanes()
    for request in ("first", "second", "third"):
        lanes.add("a", request)
    order = []
    while requests := take_all(lanes):
        order.append(requests)
        lanes.leave("a")
    assert order == [["first"], ["second"], ["third"]]


def test_lanes_run_side_by_side_including_the_one_without_a_name() -> None:
    lanes = make_lanes()
    for lane, request in (("a", "a1"), ("a", "a2"), (None, "n1"), ("b", "b1")):
        lanes.add(lane, request)
    assert take_all(lanes) == ["a1", "n1", "b1"]


def test_requests_over_the_limit_wait_and_the_oldest_runs_first() -> None:
    lanes = make_lanes(max_running=2)
    for lane in ("a", "b", "c", "d"):
        lanes.add(lane, lane)
    assert take_all(lanes) == ["a", "b"]
    lanes.leave("b")
    assert take_all(lanes) == ["c"]


def test_names_are_limited_but_the_lane_without_a_name_does_not_count() -> None:
    lanes = make_lanes(max_names=2)
    for lane in ("a", "b", None, "a"):
        lanes.add(lane, "x")
    with pytest.raises(RequestError) as refused:
        lanes.add("c", "x")
    assert refused.value.code == "websocket_stream_limit_reached"
    lanes.add("b", "x")


def test_waiting_requests_are_limited_in_number() -> None:
    lanes = make_lanes(max_running=1, max_waiting=2)
    lanes.add("a", "running")
    assert take_all(lanes) == ["running"]
    lanes.add("a", "waits")
    lanes.add("b", "waits too")
    with pytest.raises(ConcurrencyLimitExceeded):
        lanes.add("c", "one too many")
    lanes.leave("a")
    assert take_all(lanes) == ["waits"]


def test_the_requests_of_all_connections_of_a_tenant_share_its_bytes() -> None:
    work = BytesInWork(100)  # half of it for one tenant
    first, second = (
        Lanes[str](LaneLimits(max_running=1), work.hold("t", "requests", free=0)) for _ in range(2)
    )
    first.add("a", "runs", size=20)
    first.add("a", "waits", size=20)
    assert take_all(first) == ["runs"]
    with pytest.raises(RequestError):
        second.add("a", "too much", size=20)
    first.leave("a")
    second.add("a", "runs now", size=20)
    first.clear()
    assert take_all(second) == ["runs now"]
    second.leave("a")
    assert work.total == 0


def test_a_request_that_can_run_right_away_needs_no_place_in_the_queue() -> None:
    lanes = make_lanes(max_waiting=0)
    lanes.add("a", "runs")
    assert take_all(lanes) == ["runs"]


def test_a_refused_request_leaves_no_name_behind() -> None:
    lanes = make_lanes(max_running=1, max_names=2, max_waiting=0)
    lanes.add("a", "runs")
    assert take_all(lanes) == ["runs"]
    for name in ("b", "c", "d"):
        with pytest.raises(ConcurrencyLimitExceeded):
            lanes.add(name, "refused")


def test_clearing_returns_the_lanes_of_the_waiting_requests() -> None:
    lanes = make_lanes()
    for lane in ("a", "a", None, None):
        lanes.add(lane, "x")
    assert len(take_all(lanes)) == 2
    assert lanes.clear() == ["a", None]
    lanes.leave("a")
    assert take_all(lanes) == []


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 256])
def test_a_valid_name_is_its_lane(name: str) -> None:
    assert lane_of(name) == name


@pytest.mark.parametrize("name", ["", "a b", "ä", "a\n", "x" * 257, 1, [], {"a": 1}, True])
def test_an_invalid_name_is_refused(name: Any) -> None:
    with pytest.raises(RequestError) as refused:
        lane_of(name)
    assert (refused.value.param, refused.value.code) == ("stream_id", "invalid_stream_id")
