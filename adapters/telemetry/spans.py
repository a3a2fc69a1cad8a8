"""The spans of a response, as OTLP has them: made from its record when it has ended.

A trace has a span for the response, below it one for each turn, and below that one for each call
of a tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

from antiphon.adapters.telemetry import gen_ai as g
from antiphon.application.ports import EndedRun
from antiphon.application.telemetry.trace_ids import (
    RESPONSE,
    SpanContext,
    TraceIds,
    call_part,
    turn_part,
)
from antiphon.domain.metrics import MODEL_TURNS, ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.usage import Usage

NANOSECONDS = 1_000_000_000
SAMPLED, KNOWS_PARENT, PARENT_IS_REMOTE = 0x1, 0x100, 0x200
"""Bits of a span's `flags`; the names of the last two in OTLP are HAS_IS_REMOTE and IS_REMOTE."""
SERVER, CLIENT, INTERNAL = (
    otlp.Span.SPAN_KIND_SERVER,
    otlp.Span.SPAN_KIND_CLIENT,
    otlp.Span.SPAN_KIND_INTERNAL,
)
ERROR, UNSET = {"code": otlp.Status.STATUS_CODE_ERROR}, {"code": otlp.Status.STATUS_CODE_UNSET}

Fields = Mapping[str, Any]
"""A message of OTLP, or attributes, by name."""


class Trace(Struct, frozen=True, kw_only=True):
    """What the spans are made from. A response itself may be large: it does not wait for that."""

    response_id: str
    model: str
    status: str
    background: bool
    conversation_id: str | None
    finish_reason: str
    error: str
    usage: Usage | None
    metrics: ResponseMetrics

    @classmethod
    def of(cls, ended: EndedRun) -> Trace | None:
        """Return the trace of a run, or None if nothing was recorded."""
        response = ended.response
        if not isinstance(response.metrics, ResponseMetrics):
            return None
        details = response.incomplete_details
        return cls(
            response_id=response.id,
            model=response.model,
            status=response.status,
            background=bool(response.background),
            conversation_id=response.conversation.id if response.conversation else None,
            finish_reason=details.reason if details else response.status,
            error=response.error.code if response.error else "",
            usage=response.usage,
            metrics=response.metrics,
        )

    def spans(self, sample_ratio: float) -> list[Fields]:
        """Return the fields of each span, or none if the response is not sampled."""
        metrics = self.metrics
        ids = TraceIds.of(
            self.response_id,
            metrics.traceparent,
            is_linked=metrics.links_trace,
            sample_ratio=sample_ratio,
        )
        if not ids.is_sampled:
            return []
        ended_at = metrics.ended_at or metrics.received_at
        spans = [self._root(ids, ended_at)]
        for number, turn in enumerate(metrics.turns, 1):
            span = ids.span(turn_part(number))
            spans.append(self._turn(turn, span, ids.span(RESPONSE), ended_at))
            for position, call in enumerate(turn.tool_calls, 1):
                spans.append(_call(call, ids.span(call_part(number, position)), span))
        return spans

    def _root(self, ids: TraceIds, ended_at: float) -> Fields:
        metrics = self.metrics
        return _span(
            "invoke_agent antiphon",
            ids.span(RESPONSE),
            parent=ids.parent,
            flags=SAMPLED | KNOWS_PARENT | (PARENT_IS_REMOTE if ids.parent else 0),
            link=ids.link,
            times=(metrics.received_at, ended_at),
            attributes=_response_attributes(self),
            events={"admitted": metrics.admitted_at, "started": metrics.started_at},
            kind=SERVER,
            error=self.error,
        )

    def _turn(
        self, turn: TurnMetrics, span: SpanContext, parent: SpanContext, ended_at: float
    ) -> Fields:
        is_model_turn = turn.kind in MODEL_TURNS
        return _span(
            f"chat {turn.model or self.model}" if is_model_turn else turn.kind,
            span,
            parent=parent,
            times=(turn.started_at, turn.ended_at or ended_at),
            attributes=_turn_attributes(turn, self.model),
            events={
                "admitted": turn.admitted_at,
                "first_token": turn.first_token_at,
                "first_text": turn.first_text_at,
                "last_token": turn.last_token_at,
            },
            kind=CLIENT if is_model_turn else INTERNAL,
            error="" if turn.reason else "incomplete",
        )


def _call(call: ToolCallMetrics, span: SpanContext, parent: SpanContext) -> Fields:
    return _span(
        f"execute_tool {call.name}",
        span,
        parent=parent,
        times=(call.started_at, call.started_at + call.seconds),
        attributes=_call_attributes(call),
        error="" if call.result in ("ok", "approval_requested") else str(call.result),
    )


def _span(
    name: str,
    span: SpanContext,
    *,
    parent: SpanContext | None,
    times: tuple[float, float],
    attributes: Fields,
    flags: int = SAMPLED | KNOWS_PARENT,
    link: SpanContext | None = None,
    events: Mapping[str, float | None] = {},
    kind: int = INTERNAL,
    error: str = "",
) -> Fields:
    """Return the fields of one span; attributes that are None are left out."""
    if error:
        attributes = {**attributes, g.ERROR_TYPE: error}
    return {
        "trace_id": bytes.fromhex(span.trace_id),
        "span_id": bytes.fromhex(span.span_id),
        "parent_span_id": b"" if parent is None else bytes.fromhex(parent.span_id),
        "flags": flags,
        "name": _text(name),
        "kind": kind,
        "start_time_unix_nano": _nanoseconds(times[0]),
        "end_time_unix_nano": _nanoseconds(max(times)),
        "attributes": attribute_fields(attributes),
        "events": [
            {"name": event, "time_unix_nano": _nanoseconds(time)}
            for event, time in events.items()
            if time is not None
        ],
        "links": [] if link is None else [_link(link)],
        "status": ERROR if error else UNSET,
    }


def _link(link: SpanContext) -> Fields:
    return {
        "trace_id": bytes.fromhex(link.trace_id),
        "span_id": bytes.fromhex(link.span_id),
        "flags": SAMPLED | KNOWS_PARENT | PARENT_IS_REMOTE,
    }


def attribute_fields(attributes: Mapping[str, Any]) -> list[Fields]:
    """Return attributes as OTLP has them; those that are None are left out."""
    return [
        {"key": name, "value": _value(value)}
        for name, value in attributes.items()
        if value is not None
    ]


def _value(value: str | bool | int | float | Sequence[str]) -> Fields:
    if isinstance(value, str):
        return {"string_value": _text(value)}
    if isinstance(value, bool):  # before int, which it is, too
        return {"bool_value": value}
    if isinstance(value, int):
        return {"int_value": value}
    if isinstance(value, float):
        return {"double_value": value}
    return {"array_value": {"values": [{"string_value": _text(each)} for each in value]}}


def _text(text: str) -> str:
    """Return a text that is valid UTF-8: a tool server may name a tool with half a character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _nanoseconds(time: float) -> int:
    return int(time * NANOSECONDS)


def _response_attributes(trace: Trace) -> Fields:
    usage, metrics = trace.usage, trace.metrics
    return {
        g.OPERATION: "invoke_agent",
        g.PROVIDER: "antiphon",
        g.AGENT_NAME: "antiphon",
        g.REQUEST_MODEL: trace.model,
        g.RESPONSE_ID: trace.response_id,
        g.CONVERSATION_ID: trace.conversation_id,
        g.FINISH_REASONS: [trace.finish_reason],
        g.INPUT_TOKENS: usage.input_tokens if usage else None,
        g.OUTPUT_TOKENS: usage.output_tokens if usage else None,
        g.CACHED_TOKENS: usage.input_tokens_details.cached_tokens if usage else None,
        g.REASONING_TOKENS: usage.output_tokens_details.reasoning_tokens if usage else None,
        g.STATUS: trace.status,
        g.BACKGROUND: trace.background,
        g.REQUEST_ID: metrics.request_id or None,
        g.SERVER: metrics.server or None,
        g.EPOCH: metrics.epoch,
        g.QUEUE_SECONDS: _seconds(metrics.received_at, metrics.admitted_at),
    }


def _turn_attributes(turn: TurnMetrics, requested_model: str) -> Fields:
    of_all = {
        g.RESPONSE_MODEL: turn.model or None,
        g.FIRST_CHUNK: _seconds(turn.started_at, turn.first_token_at),
        g.SERVER_ADDRESS: turn.engine or None,
        g.TURN_KIND: turn.kind,
        g.ATTEMPTS: turn.attempts if turn.attempts > 1 else None,
        g.IS_REPAIRED: turn.is_repaired or None,
        g.RESUMED_TOKENS: turn.resumed_tokens or None,
    }
    if turn.kind not in MODEL_TURNS:
        return of_all
    return {
        **of_all,
        g.OPERATION: "chat",
        g.PROVIDER: "antiphon",
        g.REQUEST_MODEL: requested_model,
        g.FINISH_REASONS: [turn.reason] if turn.reason else None,
        g.INPUT_TOKENS: turn.input_tokens,
        g.OUTPUT_TOKENS: turn.output_tokens,
        g.CACHED_TOKENS: turn.cached_tokens,
        g.REASONING_TOKENS: turn.reasoning_tokens,
    }


def _call_attributes(call: ToolCallMetrics) -> Fields:
    return {
        g.OPERATION: "execute_tool",
        g.TOOL_NAME: call.name,
        g.TOOL_TYPE: call.type,
        g.TOOL_SERVER: call.server or None,
        g.TOOL_RESULT: call.result,
        g.OUTPUT_BYTES: call.output_bytes,
    }


def _seconds(start: float, end: float | None) -> float | None:
    return None if end is None else round(max(end - start, 0.0), 6)
