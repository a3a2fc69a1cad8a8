"""The collector of traces: the SDK's exporter, whose failures are logged once.

The exporter reads the variables OTEL_EXPORTER_OTLP_… of the OpenTelemetry specification ("OTLP
Exporter"), those for traces first.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http import Compression, trace_exporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.traces")
exporter_logger = logging.getLogger(trace_exporter.__name__)

EXPORT_S = 5.0
"""The time limit of an export with its retries; after it, its spans are lost."""


class Collector(SpanExporter):
    """The collector at `url`. That it takes no traces is logged once, until it takes some again."""

    def __init__(self, url: str) -> None:
        _check_variables()
        self._url = url
        self._exporter: SpanExporter = trace_exporter.OTLPSpanExporter(url, timeout=EXPORT_S)
        self._is_failing = False
        exporter_logger.addFilter(self._log_once)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS and self._is_failing:
            self._is_failing = False
            logger.info("the collector %s takes traces again", self._url)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
        exporter_logger.removeFilter(self._log_once)

    def _log_once(self, _: logging.LogRecord) -> bool:
        """Let the exporter log only the first of its failures in a row."""
        was_failing, self._is_failing = self._is_failing, True
        return not was_failing


def _check_variables() -> None:
    """Refuse what the exporter would ignore or fail with later. Raises: SettingsError."""
    known = [each.value for each in Compression]
    compression = _variable("COMPRESSION").strip().lower()
    if compression and compression not in known:
        raise SettingsError(
            f"OTEL_EXPORTER_OTLP_COMPRESSION is {compression!r}. It can be {', '.join(known)}."
        )
    used = "CERTIFICATE"
    try:
        context = ssl.create_default_context(cafile=_variable(used) or None)
        used = "CLIENT_CERTIFICATE"
        if certificate := _variable(used):
            context.load_cert_chain(certificate, _variable("CLIENT_KEY") or None)
    except OSError as error:  # SSLError is one
        raise SettingsError(f"OTEL_EXPORTER_OTLP_{used} cannot be used: {error}") from error


def _variable(name: str) -> str:
    general = os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or general
