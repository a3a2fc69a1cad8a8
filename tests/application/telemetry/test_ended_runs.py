"""Runs that have ended are reported in a row, soon, and none of them is lost."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.application.ports import EndedRun
from antiphon.application.telemetry.ended_runs import MAX_WAITING, EndedRuns
from antiphon.domain.responses.metrics import ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.responses.response import Response


def ended(name: str = "resp_1", *, calls: int = 0) -> EndedRun:
    call = ToolCallMetrics(type="mcp", name="look", started_at=1.0)
    turn = TurnMetrics(started_at=1.0, tool_calls=(call,) * calls)
    metrics = ResponseMetrics(received_at=1.0, ended_at=2.0, turns=(turn,))
    response = Response(id=name, created_at=1, model="m", status="completed", output=[])
    return EndedRun.of("t", response, metrics)


class Reports:
    """What two of them were told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.is_told = asyncio.Event()

    def first(self, run: EndedRun) -> None:
        self.told.append(("first", run.response_id))

    def second(self, run: EndedRun) -> None:
        self.told.append(("second", run.response_id))
        self.is_told.set()


async def test_a_flush_tells_each_report_of_all_runs_once() -> None:
    reports = Reports()
    runs = EndedRuns([reports.first, reports.second])
    runs.add(ended("resp_1"))
    runs.add(ended("resp_2"))
    assert reports.told == []
    runs.flush()
    runs.flush()
    assert reports.told == [
        (report, run) for report in ("first", "second") for run in ("resp_1", "resp_2")
    ]


async def test_only_so_many_spans_wait() -> None:
    reports = Reports()
    runs = EndedRuns([reports.first])
    for _ in range(MAX_WAITING // 2 - 1):
        runs.add(ended())
    assert reports.told == []
    runs.add(ended())
    assert len(reports.told) == MAX_WAITING // 2
    runs.add(ended(calls=MAX_WAITING))
    assert len(reports.told) == MAX_WAITING // 2 + 1


async def test_a_run_does_not_wait_for_others_for_long() -> None:
    reports = Reports()
    runs = EndedRuns([reports.second])
    for _ in range(2):
        reports.is_told.clear()
        runs.add(ended())
        async with asyncio.timeout(30):
            await reports.is_told.wait()


async def test_a_report_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def fail(run: EndedRun) -> None:
        if run.response_id == "resp_1":
            raise ValueError

    reports = Reports()
    runs = EndedRuns([fail, reports.first])
    runs.add(ended("resp_1"))
    runs.add(ended("resp_2"))
    runs.flush()
    assert [run for _, run in reports.told] == ["resp_1", "resp_2"]
    assert "response resp_1 could not be reported" in caplog.text
