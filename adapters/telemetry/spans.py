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
from antiphon.domain.metrics import MODEL_TURNS, ToolCallMetrics, TurnMetrics

NANOSECONDS = 1_000_000_000
SAMPLED, KNOWS_PARENT, PARENT_IS_REMOTE = 0x1, 0x100, 0x200
"""Bits of a span's `flags`; the names of the last two in OTLP are HAS_IS_REMOTE and IS_REMOTE."""
SERVER, CLIENT, INTERNAL = (
    otlp.Span.SPAN_KIND_SERVER,
    otlp.Span.SPAN_KIND_CLIENT,
    otlp.Span.SPAN_KIND_INTERNAL,
)
MAX_TEMPLATES = 256
"""Templates of spans that are remembered. They differ by model, status, reason and so on."""

ERROR, UNSET = (
    otlp.Status(code=otlp.Status.STATUS_CODE_ERROR),
    otlp.Status(code=otlp.Status.STATUS_CODE_UNSET),
)

Fields = Mapping[str, Any]
"""Attributes by name."""
NO_EVENTS: Mapping[str, float | None] = {}
Pairs = tuple[tuple[str, Any], ...]
"""Attributes that spans of many responses have in common."""

VALUE_FIELDS: Mapping[type, str] = {
    str: "string_value",
    bool: "bool_value",
    int: "int_value",
    float: "double_value",
}
"""The type of an attribute -> the field of its value."""


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
    return _encode_span(
        span,
        parent=ids.parent,
        is_parent_remote=True,
        link=ids.link,
        times=(metrics.received_at, ended_at),
        attributes=_response_attributes(run),
        events={"admitted": metrics.admitted_at, "started": metrics.started_at},
        shared=_Shared(
            name="invoke_agent antiphon",
            kind=SERVER,
            error=run.error,
            attributes=(
                (g.OPERATION, "invoke_agent"),
                (g.PROVIDER, "antiphon"),
                (g.AGENT_NAME, "antiphon"),
                (g.REQUEST_MODEL, run.model),
                (g.FINISH_REASONS, (run.incomplete_reason or run.status,)),
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
        events={
            "admitted": turn.admitted_at,
            "first_token": turn.first_token_at,
            "first_text": turn.first_text_at,
            "last_token": turn.last_token_at,
        },
        shared=_Shared(
            name=f"chat {turn.model or requested_model}" if is_model_turn else turn.kind,
            kind=CLIENT if is_model_turn else INTERNAL,
            error="" if turn.reason else "incomplete",
            attributes=(
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
        shared=_Shared(
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
            is_rare=True,  # clients choose the names of the tools of their servers
        ),
    )


class _Shared(Struct, frozen=True, kw_only=True):
    """What the spans of many responses have in common; `is_rare`: few do."""

    name: str
    kind: otlp.Span.SpanKind.ValueType
    error: str
    attributes: Pairs
    is_rare: bool = False


class _Template:
    """A span that is filled in anew for each response: that takes a fifth less than making one.

    `attributes` and `events` are the names of what is filled in.
    """

    def __init__(
        self,
        shared: _Shared,
        attributes: tuple[str, ...],
        types: tuple[type, ...],
        events: tuple[str, ...],
    ) -> None:
        error: Pairs = ((g.ERROR_TYPE, shared.error),) if shared.error else ()
        self._span = otlp.Span(
            name=_text(shared.name),
            kind=shared.kind,
            attributes=attribute_fields((*shared.attributes, *error)),
            status=ERROR if shared.error else UNSET,
        )
        self._values = [
            (self._span.attributes.add(key=name).value, VALUE_FIELDS[type_])
            for name, type_ in zip(attributes, types, strict=True)
        ]
        self._events = [self._span.events.add(name=name) for name in events]

    def encode(
        self,
        context: SpanContext,
        parent: SpanContext | None,
        flags: int,
        times: tuple[float, float],
        attributes: Iterable[Any],
        event_times: Iterable[float],
    ) -> bytes:
        span = self._span
        span.trace_id = bytes.fromhex(context.trace_id)
        span.span_id = bytes.fromhex(context.span_id)
        span.parent_span_id = b"" if parent is None else bytes.fromhex(parent.span_id)
        span.flags = flags
        span.start_time_unix_nano = int(times[0] * NANOSECONDS)
        span.end_time_unix_nano = int(max(times) * NANOSECONDS)
        for (value, field), attribute in zip(self._values, attributes, strict=True):
            setattr(value, field, _text(attribute) if field == "string_value" else attribute)
        for event, time in zip(self._events, event_times, strict=True):
            event.time_unix_nano = int(time * NANOSECONDS)
        return bytes(span.SerializeToString())


_remembered_template = lru_cache(MAX_TEMPLATES)(_Template)


def _encode_span(
    span: SpanContext,
    *,
    parent: SpanContext | None,
    times: tuple[float, float],
    attributes: Fields,
    shared: _Shared,
    is_parent_remote: bool = False,
    link: SpanContext | None = None,
    events: Mapping[str, float | None] = NO_EVENTS,
) -> bytes:
    """Return a span; what is None is left out."""
    flags = SAMPLED | KNOWS_PARENT
    if parent is not None and is_parent_remote:
        flags |= PARENT_IS_REMOTE
    known = {name: value for name, value in attributes.items() if value is not None}
    past = {name: time for name, time in events.items() if time is not None}
    values = known.values()
    make_template = _Template if shared.is_rare else _remembered_template
    template = make_template(shared, tuple(known), tuple(map(type, values)), tuple(past))
    encoded = template.encode(span, parent, flags, times, values, past.values())
    if link is None:
        return encoded
    # Fields of one message may come in any order.
    return encoded + encode_field(otlp.Span.LINKS_FIELD_NUMBER, _encode_link(link))


def _encode_link(link: SpanContext) -> bytes:
    made = otlp.Span.Link(
        trace_id=bytes.fromhex(link.trace_id),
        span_id=bytes.fromhex(link.span_id),
        flags=SAMPLED | KNOWS_PARENT | PARENT_IS_REMOTE,
    )
    return bytes(made.SerializeToString())


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


def _response_attributes(run: EndedRun) -> Fields:
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
