"""The spans of a response: made from its record when it has ended.

A trace has a span for the response, below it one for each turn, and below that one for each call
of a tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from antiphon import __version__
from antiphon.adapters.telemetry import gen_ai as g
from antiphon.application.ports import EndedRun
from antiphon.application.telemetry import trace_ids
from antiphon.application.telemetry.recorder import in_microseconds
from antiphon.application.telemetry.trace_ids import TraceIds
from antiphon.domain.responses.metrics import MODEL_TURNS, ToolCallMetrics, TurnMetrics
from antiphon.domain.responses.usage import Usage

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value | None]
"""Names and values; what is None is left out."""

MAX_TEXT = 1024
"""The characters of a text in a span. Names of tools are the choice of their servers."""
NANOSECONDS = 1_000_000_000

SCOPE = InstrumentationScope("antiphon", __version__)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
WORKED, FAILED = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class MakeSpans:
    """Makes the spans of runs that have ended on the server that `resource` describes.

    A response without a client's trace is sampled by `sample_ratio`.
    """

    def __init__(self, resource: Resource, *, sample_ratio: float) -> None:
        self._resource = resource
        self._sample_ratio = sample_ratio

    def __call__(self, run: EndedRun) -> Iterator[ReadableSpan]:
        """Yield the spans of a run, none if it is not sampled."""
        metrics = run.metrics
        ids = TraceIds.of(
            run.response_id,
            metrics.traceparent,
            is_linked=metrics.links_trace,
            sample_ratio=self._sample_ratio,
        )
        if not ids.is_sampled:
            return
        root = _context(ids.span())
        ended_at = metrics.ended_at or metrics.received_at
        yield self._span_of_response(run, ids, root, ended_at)
        for number, turn in enumerate(metrics.turns, 1):
            context = _context(ids.span(number))
            yield self._span_of_turn(turn, context, root, run.model, ended_at)
            for position, call in enumerate(turn.tool_calls, 1):
                yield self._span_of_call(call, _context(ids.span(number, position)), context)

    def _span_of_response(
        self, run: EndedRun, ids: TraceIds, context: SpanContext, ended_at: float
    ) -> ReadableSpan:
        metrics = run.metrics
        return self._span(
            "invoke_agent antiphon",
            context,
            parent=None if ids.parent is None else _context(ids.parent, is_remote=True),
            links=() if ids.link is None else (Link(_context(ids.link, is_remote=True)),),
            kind=SpanKind.SERVER,
            times=(metrics.received_at, ended_at),
            events={"admitted": metrics.admitted_at, "started": metrics.started_at},
            error=run.error,
            attributes={
                g.OPERATION: "invoke_agent",
                g.PROVIDER: "antiphon",
                g.AGENT_NAME: "antiphon",
                g.REQUEST_MODEL: run.model,
                g.FINISH_REASONS: (run.incomplete_reason or run.status,),
                g.STATUS: run.status,
                g.BACKGROUND: run.background,
                g.SERVER: metrics.server or None,
                g.EPOCH: metrics.epoch,
                g.RESPONSE_ID: run.response_id,
                g.CONVERSATION_ID: run.conversation_id,
                **_tokens(run.usage),
                g.REQUEST_ID: metrics.request_id or None,
                g.QUEUE_SECONDS: _seconds(metrics.received_at, metrics.admitted_at),
            },
        )

    def _span_of_turn(
        self,
        turn: TurnMetrics,
        context: SpanContext,
        parent: SpanContext,
        requested_model: str,
        response_ended_at: float,
    ) -> ReadableSpan:
        is_model_turn = turn.kind in MODEL_TURNS
        attributes: dict[str, Value | None] = {
            g.RESPONSE_MODEL: turn.model or None,
            g.SERVER_ADDRESS: turn.engine or None,
            g.TURN_KIND: turn.kind,
            g.FIRST_CHUNK: _seconds(turn.started_at, turn.first_token_at),
            g.ATTEMPTS: turn.attempts if turn.attempts > 1 else None,
            g.IS_REPAIRED: turn.is_repaired or None,
            g.UNMARKED_CALLS: turn.unmarked_calls or None,
            g.RESUMED_TOKENS: turn.resumed_tokens or None,
        }
        if is_model_turn:
            attributes |= {
                g.OPERATION: "chat",
                g.PROVIDER: "antiphon",
                g.REQUEST_MODEL: requested_model,
                g.FINISH_REASONS: (turn.reason,) if turn.reason else None,
                g.INPUT_TOKENS: turn.input_tokens,
                g.OUTPUT_TOKENS: turn.output_tokens,
                g.CACHED_TOKENS: turn.cached_tokens,
                g.REASONING_TOKENS: turn.reasoning_tokens,
            }
        return self._span(
            f"chat {turn.model or requested_model}" if is_model_turn else turn.kind,
            context,
            parent=parent,
            kind=SpanKind.CLIENT if is_model_turn else SpanKind.INTERNAL,
            times=(turn.started_at, turn.ended_at or response_ended_at),
            events={
                "admitted": turn.admitted_at,
                "first_token": turn.first_token_at,
                "first_text": turn.first_text_at,
                "last_token": turn.last_token_at,
            },
            error="" if turn.reason else "incomplete",
            attributes=attributes,
        )

    def _span_of_call(
        self, call: ToolCallMetrics, context: SpanContext, parent: SpanContext
    ) -> ReadableSpan:
        has_worked = call.result in ("ok", "approval_requested")
        return self._span(
            f"execute_tool {call.name}",
            context,
            parent=parent,
            times=(call.started_at, call.started_at + call.seconds),
            error="" if has_worked else str(call.result),
            attributes={
                g.OPERATION: "execute_tool",
                g.TOOL_NAME: call.name,
                g.TOOL_TYPE: call.type,
                g.TOOL_SERVER: call.server or None,
                g.TOOL_RESULT: call.result,
                g.OUTPUT_BYTES: call.output_bytes,
            },
        )

    def _span(
        self,
        name: str,
        context: SpanContext,
        *,
        parent: SpanContext | None,
        times: tuple[float, float],
        error: str,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
        events: Mapping[str, float | None] = {},
    ) -> ReadableSpan:
        """Return an ended span. Events that are None are left out."""
        values = {key: _clean(value) for key, value in attributes.items() if value is not None}
        if error:
            values[g.ERROR_TYPE] = _clean(error)
        return ReadableSpan(
            str(_clean(name)),
            context,
            parent,
            self._resource,
            values,
            [Event(key, None, _nanoseconds(at)) for key, at in events.items() if at is not None],
            links,
            kind,
            status=FAILED if error else WORKED,
            start_time=_nanoseconds(times[0]),
            end_time=_nanoseconds(max(times)),
            instrumentation_scope=SCOPE,
        )


def _context(span: trace_ids.SpanContext, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(span.trace_id, 16), int(span.span_id, 16), is_remote, SAMPLED)


def _clean(value: Value) -> Value:
    """Return a value that can be exported: a tool server may name a tool with half a character."""
    if not isinstance(value, str):
        return value
    text = value if len(value) <= MAX_TEXT else value[:MAX_TEXT]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _tokens(usage: Usage | None) -> Attributes:
    if usage is None:
        return {}
    return {
        g.INPUT_TOKENS: usage.input_tokens,
        g.OUTPUT_TOKENS: usage.output_tokens,
        g.CACHED_TOKENS: usage.input_tokens_details.cached_tokens,
        g.REASONING_TOKENS: usage.output_tokens_details.reasoning_tokens,
    }


def _nanoseconds(seconds: float) -> int:
    return int(seconds * NANOSECONDS)


def _seconds(start: float, end: float | None) -> float | None:
    return None if end is None else in_microseconds(max(end - start, 0.0))
