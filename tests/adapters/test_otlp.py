"""Traces reach a collector as its operator set it up, and a trace that is odd costs no other."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from tests.support import otlp_collector
from tests.support.otlp_collector import attributes_of, collecting

from antiphon.adapters.telemetry.collector import Collector
from antiphon.adapters.telemetry.otlp import OtlpTraces
from antiphon.adapters.telemetry.spans import MAX_TEXT
from antiphon.application.ports import EndedRun
from antiphon.domain.errors import SettingsError
from antiphon.domain.responses.metrics import ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.responses.response import Response


def ended(name: str = "look", trace_of: str = "resp_1") -> EndedRun:
    call = ToolCallMetrics(type="mcp", name=name, started_at=2.0, seconds=0.5, result="ok")
    turn = TurnMetrics(started_at=1.0, ended_at=3.0, reason="stop", tool_calls=(call,))
    metrics = ResponseMetrics(received_at=1.0, ended_at=3.0, turns=(turn,))
    response = Response(
        id=trace_of, created_at=1, model="m", status="completed", output=[], metrics=metrics
    )
    return EndedRun.of("t", response, metrics)


async def export(collector: otlp_collector.Collector) -> None:
    traces = OtlpTraces(collector.url)
    traces.report(ended())
    await traces.aclose()


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=north")
    return monkeypatch


async def test_the_spans_of_a_run_have_their_parents_and_times() -> None:
    with collecting() as collector:
        traces = OtlpTraces(collector.url, server="s1")
        traces.report(ended())
        await traces.aclose()
    root, turn, call = collector.spans
    assert (root.name, turn.name, call.name) == (
        "invoke_agent antiphon",
        "chat m",
        "execute_tool look",
    )
    assert (root.parent_span_id, turn.parent_span_id, call.parent_span_id) == (
        b"",
        root.span_id,
        turn.span_id,
    )
    assert (call.start_time_unix_nano, call.end_time_unix_nano) == (2_000_000_000, 2_500_000_000)
    assert attributes_of(call)["gen_ai.tool.name"] == "look"
    assert b"deployment.environment.name" in collector.bodies[0]


async def test_a_name_with_half_a_character_is_exported() -> None:
    with collecting() as collector:
        traces = OtlpTraces(collector.url)
        traces.report(ended("\ud83d"))
        traces.report(ended("whole"))
        await traces.aclose()
    assert [span.name for span in collector.named("execute_tool")] == [
        "execute_tool ?",
        "execute_tool whole",
    ]


async def test_a_long_name_is_cut() -> None:
    with collecting() as collector:
        traces = OtlpTraces(collector.url)
        traces.report(ended("n" * 100_000))
        await traces.aclose()
    [call] = collector.named("execute_tool")
    assert len(call.name) == len(attributes_of(call)["gen_ai.tool.name"]) == MAX_TEXT


async def test_traces_that_wait_for_a_collector_have_a_limit_and_what_is_dropped_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = threading.Event()
    with collecting(hangs=answers) as collector:
        traces = OtlpTraces(collector.url, max_queued=30)
        for number in range(100):
            traces.report(ended(trace_of=f"resp_{number}"))
        answers.set()
        await traces.aclose()
    assert 30 <= len(collector.spans) <= 60  # what was being sent, and what waited
    assert "Queue full, dropping Span." in caplog.text


async def test_the_end_waits_two_seconds_for_a_collector_that_hangs() -> None:
    with collecting(hangs=threading.Event()) as collector:
        traces = OtlpTraces(collector.url)
        traces.report(ended())
        started_at = time.monotonic()
        await traces.aclose()
        assert 1.9 < time.monotonic() - started_at < 4


async def test_headers_of_the_variables_are_sent_those_for_traces_first(
    variables: pytest.MonkeyPatch,
) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=general")
    variables.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-token=a%20b,x-team=blue")
    with collecting() as collector:
        await export(collector)
    [headers] = collector.headers
    assert (headers["x-token"], headers["x-team"]) == ("a b", "blue")
    assert headers["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
async def test_an_export_can_be_compressed(compression: str, variables: pytest.MonkeyPatch) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with collecting() as collector:
        await export(collector)
    [headers] = collector.headers
    assert headers.get("content-encoding", "none") == compression
    assert len(collector.spans) == 3


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("COMPRESSION", "zip", "'zip'. It can be none, deflate, gzip"),
        ("CERTIFICATE", "/no/such/file", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        ("CLIENT_CERTIFICATE", "/no/such/file", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    variable: str, value: str, words: str, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv(f"OTEL_EXPORTER_OTLP_{variable}", value)
    with pytest.raises(SettingsError, match=words):
        OtlpTraces("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("statuses", "sent"),
    [((), 1), ((503,), 2), ((429, 502), 3), ((400,), 1), ((500,), 1)],
    ids=str,
)
async def test_only_what_may_pass_later_is_sent_again(statuses: tuple[int, ...], sent: int) -> None:
    with collecting(statuses=statuses) as collector:
        await export(collector)
    assert len(collector.bodies) == sent
    assert len(set(collector.bodies)) == 1


def test_a_collector_that_refuses_is_logged_once_until_it_takes_traces_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with collecting(statuses=(400, 503, 400)) as collector:
        client = Collector(collector.url)
        for _ in range(4):
            client.export([])
        client.shutdown()
    assert len(collector.bodies) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "Failed to export spans batch code: 400, reason: Bad Request",
        f"the collector {collector.url} takes traces again",
    ]
