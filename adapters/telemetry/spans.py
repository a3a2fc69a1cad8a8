"""The spans of a response, as OTLP has them: made from its record when it has ended.

A trace has a span for the response, below it one for each turn, and below that one for each call
of a tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

from antiphon.adapters.telemetry import gen_ai as g
from antiphon.adapters.telemetry import wire
from antiphon.adapters.telemetry.wire import Attributes, attribute_fields, encode_field
from antiphon.application.ports import EndedRun
from antiphon.application.telemetry.recorder import in_microseconds
from antiphon.application.telemetry.trace_ids import SpanContext, TraceIds
from antiphon.domain.metrics import MODEL_TURNS, ToolCallMetrics, TurnMetrics

SAMPLED, KNOWS_PARENT, PARENT_IS_REMOTE = 0x1, 0x100, 0x200
"""Bits of a span's `flags`; the names of the last two in OTLP are HAS_IS_REMOTE and IS_REMOTE."""
SERVER, CLIENT, INTERNAL = (
    otlp.Span.SPAN_KIND_SERVER,
    otlp.Span.SPAN_KIND_CLIENT,
    otlp.Span.SPAN_KIND_INTERNAL,
)
MAX_CONSTANTS = 256
"""What is remembered of spans. It differs by model, status, reason and so on."""

ERROR, UNSET = (
    otlp.Status(code=otlp.Status.STATUS_CODE_ERROR),
    otlp.Status(code=otlp.Status.STATUS_CODE_UNSET),
)


def encode_spans(run: EndedRun, sample_ratio: float) -> bytes:
    """Return the spans, each as a field of `ScopeSpans`; nothing if the run is not sampled.

    A response without a client's trace is sampled by the ratio.
    """
    metrics = run.metrics
    ids = TraceIds.of(
        run.response_id,
        metrics.traceparent,
        is_linked=metrics.links_trace,
        sample_ratio=sample_ratio,
    )
    if not ids.is_sampled:
        return b""
    root = ids.span()
    ended_at = metrics.ended_at or metrics.received_at
    spans = [_encode_response(run, ids, root, ended_at)]
    for number, turn in enumerate(metrics.turns, 1):
        span = ids.span(number)
        spans.append(_encode_turn(turn, span, root, run.model, ended_at))
        for position, call in enumerate(turn.tool_calls, 1):
            spans.append(_encode_call(call, ids.span(number, position), span))
    return b"".join(encode_field(otlp.ScopeSpans.SPANS_FIELD_NUMBER, span) for span in spans)


def _encode_response(run: EndedRun, ids: TraceIds, span: SpanContext, ended_at: float) -> bytes:
    metrics = run.metrics
    constant = _constant_of_response(
        run.model,
        run.status,
        run.incomplete_reason,
        run.error,
        run.background,
        metrics.server,
        metrics.epoch,
    )
    encoded = _fill_in(
        constant,
        span,
        parent=ids.parent,
        is_parent_remote=ids.parent is not None,
        times=(metrics.received_at, ended_at),
        attributes=_response_attributes(run),
        events=(("admitted", metrics.admitted_at), ("started", metrics.started_at)),
    )
    if ids.link is None:
        return encoded
    return encoded + encode_field(otlp.Span.LINKS_FIELD_NUMBER, _encode_link(ids.link))


@lru_cache(MAX_CONSTANTS)
def _constant_of_response(
    model: str,
    status: str,
    incomplete_reason: str,
    error: str,
    background: bool,
    server: str,
    epoch: int,
) -> bytes:
    return _encode_constant(
        name="invoke_agent antiphon",
        kind=SERVER,
        error=error,
        attributes=(
            (g.OPERATION, "invoke_agent"),
            (g.PROVIDER, "antiphon"),
            (g.AGENT_NAME, "antiphon"),
            (g.REQUEST_MODEL, model),
            (g.FINISH_REASONS, (incomplete_reason or status,)),
            (g.STATUS, status),
            (g.BACKGROUND, background),
            (g.SERVER, server or None),
            (g.EPOCH, epoch),
        ),
    )


def _encode_turn(
    turn: TurnMetrics,
    span: SpanContext,
    parent: SpanContext,
    requested_model: str,
    response_ended_at: float,
) -> bytes:
    return _fill_in(
        _constant_of_turn(turn.kind, turn.model, requested_model, turn.engine, turn.reason),
        span,
        parent=parent,
        times=(turn.started_at, turn.ended_at or response_ended_at),
        attributes=_turn_attributes(turn),
        events=(
            ("admitted", turn.admitted_at),
            ("first_token", turn.first_token_at),
            ("first_text", turn.first_text_at),
            ("last_token", turn.last_token_at),
        ),
    )


@lru_cache(MAX_CONSTANTS)
def _constant_of_turn(
    kind: str, model: str, requested_model: str, engine: str, reason: str
) -> bytes:
    is_model_turn = kind in MODEL_TURNS
    model_attributes: Attributes = (
        (g.OPERATION, "chat"),
        (g.PROVIDER, "antiphon"),
        (g.REQUEST_MODEL, requested_model),
        (g.FINISH_REASONS, (reason,) if reason else None),
    )
    return _encode_constant(
        name=f"chat {model or requested_model}" if is_model_turn else kind,
        kind=CLIENT if is_model_turn else INTERNAL,
        error="" if reason else "incomplete",
        attributes=(
            *(model_attributes if is_model_turn else ()),
            (g.RESPONSE_MODEL, model or None),
            (g.SERVER_ADDRESS, engine or None),
            (g.TURN_KIND, kind),
        ),
    )


def _encode_call(call: ToolCallMetrics, span: SpanContext, parent: SpanContext) -> bytes:
    has_worked = call.result in ("ok", "approval_requested")
    # Not remembered: clients choose the names of the tools of their servers.
    constant = _encode_constant(
        name=f"execute_tool {call.name}",
        kind=INTERNAL,
        error="" if has_worked else str(call.result),
        attributes=(
            (g.OPERATION, "execute_tool"),
            (g.TOOL_NAME, call.name),
            (g.TOOL_TYPE, call.type),
            (g.TOOL_SERVER, call.server or None),
            (g.TOOL_RESULT, call.result),
        ),
    )
    return _fill_in(
        constant,
        span,
        parent=parent,
        times=(call.started_at, call.started_at + call.seconds),
        attributes=((g.OUTPUT_BYTES, call.output_bytes),),
    )


def _encode_constant(
    *, name: str, kind: otlp.Span.SpanKind.ValueType, error: str, attributes: Attributes
) -> bytes:
    """Return what the spans of many responses have in common."""
    span = otlp.Span(
        name=wire.to_utf8(name),
        kind=kind,
        attributes=attribute_fields((*attributes, (g.ERROR_TYPE, error or None))),
        status=ERROR if error else UNSET,
    )
    return bytes(span.SerializeToString())


def _fill_in(
    constant: bytes,
    span: SpanContext,
    *,
    parent: SpanContext | None,
    times: tuple[float, float],
    attributes: Attributes,
    is_parent_remote: bool = False,
    events: Sequence[tuple[str, float | None]] = (),
) -> bytes:
    """Return a span with this constant; attributes and events that are None are left out."""
    flags = SAMPLED | KNOWS_PARENT | (PARENT_IS_REMOTE if is_parent_remote else 0)
    ids = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    parts = (
        constant,
        wire.encode_head(*ids, times, flags),
        b"" if parent is None else wire.encode_parent(bytes.fromhex(parent.span_id)),
        wire.encode_attributes(attributes),
        wire.encode_events(events),
    )
    return b"".join(parts)


def _encode_link(link: SpanContext) -> bytes:
    made = otlp.Span.Link(
        trace_id=bytes.fromhex(link.trace_id),
        span_id=bytes.fromhex(link.span_id),
        flags=SAMPLED | KNOWS_PARENT | PARENT_IS_REMOTE,
    )
    return bytes(made.SerializeToString())


def _response_attributes(run: EndedRun) -> Attributes:
    usage, metrics = run.usage, run.metrics
    tokens: Attributes = ()
    if usage is not None:
        tokens = (
            (g.INPUT_TOKENS, usage.input_tokens),
            (g.OUTPUT_TOKENS, usage.output_tokens),
            (g.CACHED_TOKENS, usage.input_tokens_details.cached_tokens),
            (g.REASONING_TOKENS, usage.output_tokens_details.reasoning_tokens),
        )
    return (
        (g.RESPONSE_ID, run.response_id),
        (g.CONVERSATION_ID, run.conversation_id),
        *tokens,
        (g.REQUEST_ID, metrics.request_id or None),
        (g.QUEUE_SECONDS, _seconds(metrics.received_at, metrics.admitted_at)),
    )


def _turn_attributes(turn: TurnMetrics) -> Attributes:
    of_all = (
        (g.FIRST_CHUNK, _seconds(turn.started_at, turn.first_token_at)),
        (g.ATTEMPTS, turn.attempts if turn.attempts > 1 else None),
        (g.IS_REPAIRED, turn.is_repaired or None),
        (g.RESUMED_TOKENS, turn.resumed_tokens or None),
    )
    if turn.kind not in MODEL_TURNS:
        return of_all
    return (
        *of_all,
        (g.INPUT_TOKENS, turn.input_tokens),
        (g.OUTPUT_TOKENS, turn.output_tokens),
        (g.CACHED_TOKENS, turn.cached_tokens),
        (g.REASONING_TOKENS, turn.reasoning_tokens),
    )


def _seconds(start: float, end: float | None) -> float | None:
    return None if end is None else in_microseconds(max(end - start, 0.0))
