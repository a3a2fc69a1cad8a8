"""Traces for OpenTelemetry, over OTLP/HTTP.

While a response runs, a trace costs nothing. When it has ended, its spans are made from its record
and wait in a queue; a thread sends them to the collector. It does nothing else: it would compete
with the event loop for the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress
from typing import Any

from antiphon import __version__
from antiphon.adapters.extras import install_command
from antiphon.application.ports import EndedRun
from antiphon.domain.errors import SettingsError

try:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
    from opentelemetry.proto.resource.v1 import resource_pb2 as otlp
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
    from opentelemetry.sdk.resources import Resource

    from antiphon.adapters.telemetry.collector import Collector
    from antiphon.adapters.telemetry.spans import encode_spans
    from antiphon.adapters.telemetry.wire import attribute_fields, encode_field_head
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"Traces need opentelemetry. Install it with: {install_command('traces')}"
    ) from missing

logger = logging.getLogger("antiphon.traces")

MAX_QUEUED = 4096
MAX_QUEUED_BYTES = 16 * 1024 * 1024
"""Traces that wait for their export, and their bytes. Any more are dropped, which is logged."""
EXPORT_BYTES = 1024 * 1024
"""About how large an export is at most: what waits longer than INTERVAL_S costs fewer of them."""
CHUNK_BYTES = 64 * 1024
"""Traces wait in pieces of about this size. A thousand small ones would leave the memory in
disorder, which each request pays for."""
INTERVAL_S = 1.0
"""How long traces are gathered for one export."""
CLOSE_S = 2.0
"""How long the end of the server waits for the last export."""

SCOPE = ScopeSpans(
    scope=InstrumentationScope(name="antiphon", version=__version__)
).SerializeToString()
"""The start of `ScopeSpans`: who made the spans."""


class _Chunk:
    """Traces that wait together, encoded one after another."""

    def __init__(self) -> None:
        self.spans = bytearray()
        self.traces = 0


class OtlpTraces:
    """Exports the trace of each run that has ended to a collector at `endpoint`.

    The variables OTEL_EXPORTER_OTLP_… may hold headers, certificates and the compression, and
    OTEL_RESOURCE_ATTRIBUTES more facts about this server. An export never holds up a run.
    """

    def __init__(self, endpoint: str, *, sample_ratio: float = 1.0, server: str = "") -> None:
        self._sample_ratio = sample_ratio
        self._collector = Collector(f"{endpoint.rstrip('/')}/v1/traces")
        self._resource = _describe_server(server)
        self._queue: deque[_Chunk] = deque()
        self._queued = self._queued_bytes = self._dropped = 0
        self._lock = threading.Lock()  # of the queue and its numbers
        self._is_due, self._is_closing = threading.Event(), threading.Event()
        # A daemon: a collector that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="antiphon-traces", daemon=True)
        self._thread.start()

    def report(self, ended: EndedRun) -> None:
        """Queue the trace of a run."""
        spans = encode_spans(ended, self._sample_ratio)
        if not spans:
            return
        with self._lock:
            queued_bytes = self._queued_bytes + len(spans)
            if self._queued >= MAX_QUEUED or queued_bytes > MAX_QUEUED_BYTES:
                self._dropped += 1
                return
            if not self._queue or len(self._queue[-1].spans) >= CHUNK_BYTES:
                self._queue.append(_Chunk())
            self._queue[-1].spans += spans
            self._queue[-1].traces += 1
            self._queued += 1
            self._queued_bytes = queued_bytes
        if queued_bytes >= EXPORT_BYTES:
            self._is_due.set()

    async def aclose(self) -> None:
        """Export what is queued, if that does not take long."""
        self._is_closing.set()
        self._is_due.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.get_running_loop().run_in_executor(None, self._thread.join, CLOSE_S)

    def _run(self) -> None:
        while not self._is_closing.is_set():
            self._is_due.wait(INTERVAL_S)
            self._is_due.clear()
            self._export_queue()
        self._export_queue()  # what came after the last export and before the end
        self._collector.close()

    def _export_queue(self) -> None:
        try:
            while self._queue:
                self._collector.send(self._take_batch(), give_up=self._is_closing)
        except Exception:  # of one batch, which is lost; the next ones are not
            logger.exception("traces could not be exported")
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d traces were dropped: the collector is too slow", dropped)

    def _take_batch(self) -> bytes:
        with self._lock:
            taken: list[bytes | bytearray] = [SCOPE]
            size = 0
            while self._queue and size < EXPORT_BYTES:
                chunk = self._queue.popleft()
                taken.append(chunk.spans)
                size += len(chunk.spans)
                self._queued -= chunk.traces
            self._queued_bytes -= size
        # One join: a megabyte that is copied costs as much as all else here.
        spans_bytes = size + len(SCOPE)
        spans_head = encode_field_head(ResourceSpans.SCOPE_SPANS_FIELD_NUMBER, spans_bytes)
        resource = self._resource + spans_head
        head = encode_field_head(
            ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER, len(resource) + spans_bytes
        )
        return b"".join((head, resource, *taken))


def _describe_server(server: str) -> bytes:
    """Return the start of `ResourceSpans`: which server this is."""
    described: Any = Resource.create(
        {
            "service.name": "antiphon",
            "service.version": __version__,
            "service.instance.id": server,
        }
    )
    resource = otlp.Resource(attributes=attribute_fields(described.attributes.items()))
    return bytes(ResourceSpans(resource=resource).SerializeToString())
