"""Traces for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.application.ports import ReportRun, ToolServers
from antiphon.application.telemetry.ended_runs import EndedRuns
from antiphon.application.telemetry.run_metrics import MeterRuns
from antiphon.application.telemetry.trace_context import Propagation
from antiphon.entrypoints.settings import Settings

if TYPE_CHECKING:
    from antiphon.adapters.telemetry.otlp import OtlpTraces
    from antiphon.adapters.telemetry.prometheus import PrometheusMeter


def otlp_traces(settings: Settings, owner: str) -> OtlpTraces | None:
    """Return the exporter of traces, if the settings name a collector. Raises: SettingsError."""
    if settings.otlp_endpoint is None:
        return None
    from antiphon.adapters.telemetry.otlp import OtlpTraces

    return OtlpTraces(
        settings.otlp_endpoint, sample_ratio=settings.trace_sample_ratio, server=owner
    )


def propagation(settings: Settings) -> Propagation | None:
    if settings.otlp_endpoint is None:
        return None
    return Propagation(sample_ratio=settings.trace_sample_ratio)


def ended_runs(
    traces: OtlpTraces | None,
    meter: PrometheusMeter | None,
    settings: Settings,
    tool_servers: ToolServers | None,
) -> EndedRuns | None:
    """Return what is told of each run that has ended, if anybody is."""
    reports: list[ReportRun] = [] if traces is None else [traces.report]
    if meter is not None:
        labels = getattr(tool_servers, "labels", ())  # of servers that the operator chose
        by_tenant = settings.metrics_tenants
        reports.append(MeterRuns(meter, own_servers=labels, by_tenant=by_tenant))
    if not reports:
        return None
    ended = EndedRuns(reports)
    if meter is not None:
        meter.before_reading(ended.flush)
    return ended
