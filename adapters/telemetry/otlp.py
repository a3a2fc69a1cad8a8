"""Traces for OpenTelemetry, over OTLP/HTTP, by its SDK.

While a response runs, a trace costs nothing. When it has ended, its spans are made from its record
and wait in the SDK's queue; the SDK's thread sends them to the collector.
"""

from __future__ import annotations

import asyncio
import threading

from antiphon import __version__
from antiphon.adapters.extras import install_command
from antiphon.application.ports import EndedRun
from antiphon.domain.errors import SettingsError

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from antiphon.adapters.telemetry.collector import Collector
    from antiphon.adapters.telemetry.spans import MakeSpans
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"Traces need opentelemetry. Install it with: {install_command('traces')}"
    ) from missing

MAX_QUEUED = 8192
"""Spans that wait for their export. For any more, the oldest are dropped, which is logged."""
MAX_BATCH = 512
"""Spans of an export: so many do not wait longer."""
INTERVAL_S = 1.0
"""The time for which spans are gathered for one export."""
CLOSE_S = 2.0
"""The time for which the end of the server waits for the last export."""


class OtlpTraces:
    """Exports the trace of each run that has ended to a collector at `endpoint`.

    The variables OTEL_EXPORTER_OTLP_… may hold headers, certificates and the compression, and
    OTEL_RESOURCE_ATTRIBUTES more facts about this server. An export never holds up a run.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        sample_ratio: float = 1.0,
        server: str = "",
        max_queued: int = MAX_QUEUED,
    ) -> None:
        described = {
            "service.name": "antiphon",
            "service.version": __version__,
            "service.instance.id": server,
        }
        self._make_spans = MakeSpans(Resource.create(described), sample_ratio=sample_ratio)
        self._processor = BatchSpanProcessor(
            Collector(f"{endpoint.rstrip('/')}/v1/traces"),
            max_queue_size=max_queued,
            schedule_delay_millis=INTERVAL_S * 1000,
            max_export_batch_size=min(MAX_BATCH, max_queued),
        )

    def report(self, ended: EndedRun) -> None:
        """Queue the trace of a run."""
        for span in self._make_spans(ended):
            self._processor.on_end(span)

    async def aclose(self) -> None:
        """Export what is queued, if that does not take long."""
        # A daemon: a collector that hangs must not keep the process from its end.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)
