"""Traces reach a collector as its operator set it up, and a trace that is odd costs no other."""

from __future__ import annotations

import logging
import threading

import pytest
from tests.otlp_collector import attributes_of, collecting

from antiphon.adapters.telemetry import otlp
from antiphon.adapters.telemetry.collector import Collector
from antiphon.adapters.telemetry.otlp import OtlpTraces
from antiphon.application.ports import EndedRun
from antiphon.domain.errors import SettingsError
from antiphon.domain.metrics import ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.response import Response

NEVER = threading.Event()


def ended(name: str = "look", trace_of: str = "resp_1") -> EndedRun:
    call = ToolCallMetrics(type="mcp", name=name, started_at=2.0, seconds=0.5, result="ok")
    turn = TurnMetrics(started_at=1.0, ended_at=3.0, reason="stop", tool_calls=(call,))
    metrics = ResponseMetrics(received_at=1.0, ended_at=3.0, turns=(turn,))
    response = Response(
        id=trace_of, created_at=1, model="m", status="completed", output=[], metrics=metrics
    )
    return EndedRun.of("t", response, metrics)


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


async def test_a_full_queue_drops_traces_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "MAX_QUEUED", 3)
    with collecting() as collector:
        traces = OtlpTraces(collector.url)
        for number in range(5):
            traces.report(ended(trace_of=f"resp_{number}"))
        await traces.aclose()
    assert len(collector.named("invoke_agent")) == 3
    assert "2 traces were dropped" in caplog.text


async def test_a_queue_that_is_full_of_long_traces_drops_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "MAX_QUEUED_BYTES", 8000)
    with collecting() as collector:
        traces = OtlpTraces(collector.url)
        traces.report(ended("n" * 2000))
        traces.report(ended("m" * 2000))
        await traces.aclose()
    assert len(collector.named("execute_tool n")) == 1
    assert collector.named("execute_tool m") == []
    assert "1 traces were dropped" in caplog.text


def test_headers_of_the_variables_are_sent_those_for_traces_first(
    variables: pytest.MonkeyPatch,
) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=general")
    variables.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-token=a%20b,x-team=blue")
    with collecting() as collector:
        Collector(collector.url).send(b"", give_up=NEVER)
    [headers] = collector.headers
    assert (headers["x-token"], headers["x-team"]) == ("a b", "blue")
    assert headers["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_an_export_can_be_compressed(compression: str, variables: pytest.MonkeyPatch) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with collecting() as collector:
        Collector(collector.url).send(b"spans", give_up=NEVER)
    assert collector.bodies == [b"spans"]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("COMPRESSION", "zip", "'zip'. It can be none, gzip, deflate"),
        ("CERTIFICATE", "/no/such/file", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        ("CLIENT_CERTIFICATE", "/no/such/file", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    variable: str, value: str, words: str, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv(f"OTEL_EXPORTER_OTLP_{variable}", value)
    with pytest.raises(SettingsError, match=words):
        Collector("http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("statuses", "asked"),
    [((), 1), ((503,), 2), ((429, 502), 3), ((400,), 1), ((500,), 1)],
    ids=str,
)
def test_only_what_may_pass_later_is_sent_again(statuses: tuple[int, ...], asked: int) -> None:
    with collecting(statuses=statuses) as collector:
        Collector(collector.url).send(b"spans", give_up=NEVER)
    assert collector.bodies == [b"spans"] * asked


def test_a_collector_that_refuses_is_logged_once_until_it_takes_traces_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "antiphon.traces")
    with collecting(statuses=(400, 400)) as collector:
        client = Collector(collector.url)
        for _ in range(4):
            client.send(b"spans", give_up=NEVER)
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "status 400",
        f"the collector {collector.url} takes traces again",
    ]
