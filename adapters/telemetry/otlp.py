"""Traces for OpenTelemetry, over OTLP/HTTP.

Spans are made from the record of a response when it has ended: while it runs, a trace costs
nothing. A trace has a span for the response, below it one for each turn, and below that one for
each call of a tool.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from antiphon import __version__
from antiphon.adapters.extras import install_command
from antiphon.adapters.telemetry import gen_ai as g
from antiphon.application.ports import EndedRun
from antiphon.application.telemetry.trace_ids import (
    RESPONSE,
    SpanContext,
    TraceIds,
    call_part,
    turn_part,
)
from antiphon.domain.errors import SettingsError
from antiphon.domain.metrics import MODEL_TURNS, ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.response import Response

try:
    from opentelemetry import trace as otel
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"Traces need opentelemetry. Install it with: {install_command('traces')}"
    ) from missing

NANOSECONDS = 1_000_000_000
EXPORT_S = 5.0
"""How long one export may take before it is tried again or given up."""
MAX_QUEUED = 4096
"""Spans that wait for their export. Any more are dropped, which is logged."""
CLOSE_S = 2.0
"""How long the end of the server waits for the last export."""

Attributes = Mapping[str, Any]

ERROR, UNSET = otel.Status(otel.StatusCode.ERROR), otel.Status(otel.StatusCode.UNSET)


class OtlpTraces:
    """Exports the trace of each run that has ended to a collector at `endpoint`.

    The variable OTEL_EXPORTER_OTLP_HEADERS may hold headers for the collector. An export never
    holds up a run: spans wait in a queue with a limit.
    """

    def __init__(self, endpoint: str, *, sample_ratio: float = 1.0, server: str = "") -> None:
        self._sample_ratio = sample_ratio
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S),
            max_queue_size=MAX_QUEUED,
        )
        self._resource = Resource.create(
            {
                "service.name": "antiphon",
                "service.version": __version__,
                "service.instance.id": server,
            }
        )
        self._scope = InstrumentationScope("antiphon", __version__)

    def report(self, ended: EndedRun) -> None:
        """Queue the spans of a run."""
        response = ended.response
        metrics = response.metrics
        if not isinstance(metrics, ResponseMetrics):
            return
        ids = TraceIds.of(
            response.id,
            metrics.traceparent,
            is_linked=metrics.links_trace,
            sample_ratio=self._sample_ratio,
        )
        if ids.is_sampled:
            self._export(response, metrics, ids)

    async def aclose(self) -> None:
        """Export what is queued, if that does not take long."""
        closed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def close() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop has not waited for it
                loop.call_soon_threadsafe(closed.set)

        # A daemon: a collector that hangs must not keep the process from its end.
        threading.Thread(target=close, name="antiphon-traces", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await closed.wait()

    def _export(self, response: Response, metrics: ResponseMetrics, ids: TraceIds) -> None:
        ended_at = metrics.ended_at or metrics.received_at
        root = ids.span(RESPONSE)
        self._add_span(
            "invoke_agent antiphon",
            root,
            parent=ids.parent,
            link=ids.link,
            times=(metrics.received_at, ended_at),
            attributes=_response_attributes(response, metrics),
            events={"admitted": metrics.admitted_at, "started": metrics.started_at},
            kind=otel.SpanKind.SERVER,
            error=response.error.code if response.error else "",
        )
        for number, turn in enumerate(metrics.turns, 1):
            self._add_turn(number, turn, response, ids, ended_at)

    def _add_turn(
        self, number: int, turn: TurnMetrics, response: Response, ids: TraceIds, ended_at: float
    ) -> None:
        span = ids.span(turn_part(number))
        is_model_turn = turn.kind in MODEL_TURNS
        model = turn.model or response.model
        self._add_span(
            f"chat {model}" if is_model_turn else turn.kind,
            span,
            parent=ids.span(RESPONSE),
            times=(turn.started_at, turn.ended_at or ended_at),
            attributes=_turn_attributes(turn, response.model),
            events={
                "admitted": turn.admitted_at,
                "first_token": turn.first_token_at,
                "first_text": turn.first_text_at,
                "last_token": turn.last_token_at,
            },
            kind=otel.SpanKind.CLIENT if is_model_turn else otel.SpanKind.INTERNAL,
            error="" if turn.reason else "incomplete",
        )
        for position, call in enumerate(turn.tool_calls, 1):
            self._add_span(
                f"execute_tool {call.name}",
                ids.span(call_part(number, position)),
                parent=span,
                times=(call.started_at, call.started_at + call.seconds),
                attributes=_call_attributes(call),
                error="" if call.result in ("ok", "approval_requested") else str(call.result),
            )

    def _add_span(
        self,
        name: str,
        span: SpanContext,
        *,
        parent: SpanContext | None,
        times: tuple[float, float],
        attributes: Attributes,
        link: SpanContext | None = None,
        events: Mapping[str, float | None] = {},
        kind: otel.SpanKind = otel.SpanKind.INTERNAL,
        error: str = "",
    ) -> None:
        # Not by a tracer: it would measure times and make ids, which are known, at twice the cost.
        self._processor.on_end(
            ReadableSpan(
                name,
                context=_to_otel(span),
                parent=None if parent is None else _to_otel(parent),
                resource=self._resource,
                attributes={**attributes, **({g.ERROR_TYPE: error} if error else {})},
                events=[
                    Event(event, timestamp=_nanoseconds(time))
                    for event, time in events.items()
                    if time is not None
                ],
                links=[] if link is None else [otel.Link(_to_otel(link))],
                kind=kind,
                status=ERROR if error else UNSET,
                start_time=_nanoseconds(times[0]),
                end_time=_nanoseconds(max(times)),
                instrumentation_scope=self._scope,
            )
        )


def _to_otel(span: SpanContext) -> otel.SpanContext:
    return otel.SpanContext(
        int(span.trace_id, 16),
        int(span.span_id, 16),
        is_remote=True,
        trace_flags=otel.TraceFlags(otel.TraceFlags.SAMPLED),
    )


def _nanoseconds(time: float) -> int:
    return int(time * NANOSECONDS)


def _response_attributes(response: Response, metrics: ResponseMetrics) -> Attributes:
    usage = response.usage
    return _known(
        {
            g.OPERATION: "invoke_agent",
            g.PROVIDER: "antiphon",
            g.AGENT_NAME: "antiphon",
            g.REQUEST_MODEL: response.model,
            g.RESPONSE_ID: response.id,
            g.CONVERSATION_ID: response.conversation.id if response.conversation else None,
            g.FINISH_REASONS: _finish_reasons(response),
            g.INPUT_TOKENS: usage.input_tokens if usage else None,
            g.OUTPUT_TOKENS: usage.output_tokens if usage else None,
            g.CACHED_TOKENS: usage.input_tokens_details.cached_tokens if usage else None,
            g.REASONING_TOKENS: usage.output_tokens_details.reasoning_tokens if usage else None,
            g.STATUS: response.status,
            g.BACKGROUND: response.background,
            g.REQUEST_ID: metrics.request_id or None,
            g.SERVER: metrics.server or None,
            g.EPOCH: metrics.epoch,
            g.QUEUE_SECONDS: _seconds(metrics.received_at, metrics.admitted_at),
        }
    )


def _turn_attributes(turn: TurnMetrics, requested_model: str) -> Attributes:
    is_model_turn = turn.kind in MODEL_TURNS
    return _known(
        {
            g.OPERATION: "chat" if is_model_turn else None,
            g.PROVIDER: "antiphon" if is_model_turn else None,
            g.REQUEST_MODEL: requested_model if is_model_turn else None,
            g.RESPONSE_MODEL: turn.model or None,
            g.FINISH_REASONS: [turn.reason] if turn.reason and is_model_turn else None,
            g.FIRST_CHUNK: _seconds(turn.started_at, turn.first_token_at),
            g.INPUT_TOKENS: turn.input_tokens if is_model_turn else None,
            g.OUTPUT_TOKENS: turn.output_tokens if is_model_turn else None,
            g.CACHED_TOKENS: turn.cached_tokens if is_model_turn else None,
            g.REASONING_TOKENS: turn.reasoning_tokens if is_model_turn else None,
            g.SERVER_ADDRESS: turn.engine or None,
            g.TURN_KIND: turn.kind,
            g.ATTEMPTS: turn.attempts if turn.attempts > 1 else None,
            g.IS_REPAIRED: turn.is_repaired or None,
            g.RESUMED_TOKENS: turn.resumed_tokens or None,
        }
    )


def _call_attributes(call: ToolCallMetrics) -> Attributes:
    return _known(
        {
            g.OPERATION: "execute_tool",
            g.TOOL_NAME: call.name,
            g.TOOL_TYPE: call.type,
            g.TOOL_SERVER: call.server or None,
            g.TOOL_RESULT: call.result,
            g.OUTPUT_BYTES: call.output_bytes,
        }
    )


def _finish_reasons(response: Response) -> Sequence[str]:
    details = response.incomplete_details
    return [details.reason if details else response.status]


def _seconds(start: float, end: float | None) -> float | None:
    return None if end is None else round(max(end - start, 0.0), 6)


def _known(attributes: Mapping[str, Any]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
