"""What operators see: traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.application.ports import Meter, ReportRun, ToolServers
from antiphon.application.telemetry.run_metrics import MeterRuns
from antiphon.application.telemetry.trace_context import Propagation
from antiphon.entrypoints.settings import Settings

if TYPE_CHECKING:
    from antiphon.adapters.telemetry.otlp import OtlpTraces


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


def reports(
    traces: OtlpTraces | None,
    meter: Meter,
    settings: Settings,
    tool_servers: ToolServers | None,
) -> Sequence[ReportRun]:
    """Return what is told of each run that has ended."""
    told: list[ReportRun] = [] if traces is None else [traces.report]
    if settings.metrics:
        labels = getattr(tool_servers, "labels", ())  # of servers that the operator chose
        told.append(MeterRuns(meter, own_servers=labels, by_tenant=settings.metrics_tenants))
    return told
