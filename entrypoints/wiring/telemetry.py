"""What operators see: traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.application.ports import ReportRun
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


def reports(traces: OtlpTraces | None) -> Sequence[ReportRun]:
    """Return what is told of each run that has ended."""
    return [traces.report] if traces is not None else []
