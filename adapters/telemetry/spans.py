"""The spans of a response, as OTLP has them: made from its record when it has ended.

A trace has a span for the response, below it one for each turn, and below that one for each call
of a tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

from antiphon.adapters.telemetry import gen_ai as g
from antiphon.application.ports import EndedRun
from antiphon.application.telemetry.trace_ids import SpanContext, TraceIds
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
MAX_SHARED = 256
"""Parts of spans that are remembered. They differ by model, status and reason."""

ERROR, UNSET = (
    otlp.Status(code=otlp.Status.STATUS_CODE_ERROR),
    otlp.Status(code=otlp.Status.STATUS_CODE_UNSET),
)

Fields = Mapping[str, Any]
"""Attributes by name."""
Pairs = tuple[tuple[str, Any], ...]
"""Attributes by which parts of spans are remembered."""


class TracedRun(Struct, frozen=True, kw_only=True):
    """What the spans of a run are made from. Its response may be large, and does not wait."""

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
    def of(cls, ended: EndedRun) -> TracedRun | None:
        """Return what a run leaves, or None if nothing was recorded."""
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


def encode_spans(run: TracedRun, sample_ratio: float) -> bytes:
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


def _encode_response(run: TracedRun, ids: TraceIds, span: SpanContext, ended_at: float) -> bytes:
    metrics = run.metrics
    return _encode_span(
        span,
        parent=ids.parent,
        is_parent_remote=True,
        link=ids.link,
        times=(metrics.received_at, ended_at),
        attributes=_response_attributes(run),
        events=(("admitted", metrics.admitted_at), ("started", metrics.started_at)),
        shared=_encode_shared(
            "invoke_agent antiphon",
            SERVER,
            run.error,
            (
                (g.OPERATION, "invoke_agent"),
                (g.PROVIDER, "antiphon"),
                (g.AGENT_NAME, "antiphon"),
                (g.REQUEST_MODEL, run.model),
                (g.FINISH_REASONS, (run.finish_reason,)),
                (g.STATUS, run.status),
                (g.BACKGROUND, run.background),
                (g.SERVER, metrics.server or None),
                (g.EPOCH, metrics.epoch),
            ),
        ),
    )


def _encode_turn(
    turn: TurnMetrics,
    span: SpanContext,
    parent: SpanContext,
    requested_model: str,
    response_ended_at: float,
) -> bytes:
    is_model_turn = turn.kind in MODEL_TURNS
    model_attributes: Pairs = (
        (g.OPERATION, "chat"),
        (g.PROVIDER, "antiphon"),
        (g.REQUEST_MODEL, requested_model),
        (g.FINISH_REASONS, (turn.reason,) if turn.reason else None),
    )
    return _encode_span(
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
        shared=_encode_shared(
            f"chat {turn.model or requested_model}" if is_model_turn else turn.kind,
            CLIENT if is_model_turn else INTERNAL,
            "" if turn.reason else "incomplete",
            (
                *(model_attributes if is_model_turn else ()),
                (g.RESPONSE_MODEL, turn.model or None),
                (g.SERVER_ADDRESS, turn.engine or None),
                (g.TURN_KIND, turn.kind),
            ),
        ),
    )


def _encode_call(call: ToolCallMetrics, span: SpanContext, parent: SpanContext) -> bytes:
    has_worked = call.result in ("ok", "approval_requested")
    return _encode_span(
        span,
        parent=parent,
        times=(call.started_at, call.started_at + call.seconds),
        attributes={g.OUTPUT_BYTES: call.output_bytes},
        # Not remembered: clients choose the names of the tools of their servers.
        shared=_encode_shared.__wrapped__(
            f"execute_tool {call.name}",
            INTERNAL,
            "" if has_worked else str(call.result),
            (
                (g.OPERATION, "execute_tool"),
                (g.TOOL_NAME, call.name),
                (g.TOOL_TYPE, call.type),
                (g.TOOL_SERVER, call.server or None),
                (g.TOOL_RESULT, call.result),
            ),
        ),
    )


@lru_cache(MAX_SHARED)
def _encode_shared(
    name: str, kind: otlp.Span.SpanKind.ValueType, error: str, attributes: Pairs
) -> bytes:
    """Return the part of a span that those of many responses have in common."""
    if error:
        attributes = (*attributes, (g.ERROR_TYPE, error))
    shared = otlp.Span(
        name=_text(name),
        kind=kind,
        attributes=attribute_fields(attributes),
        status=ERROR if error else UNSET,
    )
    return bytes(shared.SerializeToString())


def _encode_span(
    span: SpanContext,
    *,
    parent: SpanContext | None,
    times: tuple[float, float],
    attributes: Fields,
    shared: bytes,
    is_parent_remote: bool = False,
    link: SpanContext | None = None,
    events: Sequence[tuple[str, float | None]] = (),
) -> bytes:
    """Return a span; what is None is left out."""
    flags = SAMPLED | KNOWS_PARENT
    if parent is not None and is_parent_remote:
        flags |= PARENT_IS_REMOTE
    own = otlp.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=b"" if parent is None else bytes.fromhex(parent.span_id),
        flags=flags,
        start_time_unix_nano=_nanoseconds(times[0]),
        end_time_unix_nano=_nanoseconds(max(times)),
        attributes=attribute_fields(attributes.items()),
        events=[
            otlp.Span.Event(name=name, time_unix_nano=_nanoseconds(time))
            for name, time in events
            if time is not None
        ],
        links=[] if link is None else [_link(link)],
    )
    return bytes(own.SerializeToString()) + shared  # fields of one message may come in any order


def _link(link: SpanContext) -> otlp.Span.Link:
    return otlp.Span.Link(
        trace_id=bytes.fromhex(link.trace_id),
        span_id=bytes.fromhex(link.span_id),
        flags=SAMPLED | KNOWS_PARENT | PARENT_IS_REMOTE,
    )


def encode_field(number: int, message: bytes) -> bytes:
    """Return an encoded message as a field of another one (Protocol Buffers, "Encoding").

    So what is encoded is not decoded again to be put into a larger message.
    """
    length = len(message)
    head = bytearray((number << 3 | 2,))
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + message


def attribute_fields(attributes: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return attributes as their messages are made from them; those that are None are left out."""
    return [
        {"key": name, "value": _value(value)} for name, value in attributes if value is not None
    ]


def _value(value: str | bool | int | float | Sequence[str]) -> Mapping[str, Any]:
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


def _response_attributes(run: TracedRun) -> Fields:
    usage, metrics = run.usage, run.metrics
    return {
        g.RESPONSE_ID: run.response_id,
        g.CONVERSATION_ID: run.conversation_id,
        g.INPUT_TOKENS: usage.input_tokens if usage else None,
        g.OUTPUT_TOKENS: usage.output_tokens if usage else None,
        g.CACHED_TOKENS: usage.input_tokens_details.cached_tokens if usage else None,
        g.REASONING_TOKENS: usage.output_tokens_details.reasoning_tokens if usage else None,
        g.REQUEST_ID: metrics.request_id or None,
        g.QUEUE_SECONDS: _seconds(metrics.received_at, metrics.admitted_at),
    }


def _turn_attributes(turn: TurnMetrics) -> Fields:
    of_all = {
        g.FIRST_CHUNK: _seconds(turn.started_at, turn.first_token_at),
        g.ATTEMPTS: turn.attempts if turn.attempts > 1 else None,
        g.IS_REPAIRED: turn.is_repaired or None,
        g.RESUMED_TOKENS: turn.resumed_tokens or None,
    }
    if turn.kind not in MODEL_TURNS:
        return of_all
    return {
        **of_all,
        g.INPUT_TOKENS: turn.input_tokens,
        g.OUTPUT_TOKENS: turn.output_tokens,
        g.CACHED_TOKENS: turn.cached_tokens,
        g.REASONING_TOKENS: turn.reasoning_tokens,
    }


def _seconds(start: float, end: float | None) -> float | None:
    return None if end is None else round(max(end - start, 0.0), 6)
