"""Count and time the runs that have ended, from their records."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.application.ports import EndedRun, Meter
from antiphon.application.telemetry import instruments as i
from antiphon.domain.metrics import (
    LISTING,
    MODEL_TURNS,
    ResponseMetrics,
    ToolCallMetrics,
    TurnMetrics,
)
from antiphon.domain.response import Response

OPERATION, PROVIDER = "chat", "antiphon"


class MeterRuns:
    """Tells a meter of each run that has ended.

    Only tools of `own_servers`, the labels of the operator's MCP servers, are counted by name: the
    names of others are chosen by clients. `by_tenant`: also count by tenant.
    """

    def __init__(
        self, meter: Meter, *, own_servers: Collection[str] = (), by_tenant: bool = False
    ) -> None:
        self._meter = meter
        self._own_servers = own_servers
        self._by_tenant = by_tenant

    def __call__(self, ended: EndedRun) -> None:
        response, metrics = ended.response, ended.response.metrics
        if not isinstance(metrics, ResponseMetrics):
            return
        self._count(response, metrics)
        self._time(response, metrics)
        for turn in metrics.turns:
            self._meter_turn(turn, turn.model or response.model)
            for call in turn.tool_calls:
                self._meter_call(call)
        if self._by_tenant:
            self._count_tenant(ended.tenant, response)

    def _count(self, response: Response, metrics: ResponseMetrics) -> None:
        add = self._meter.add
        add(i.RESPONSES, 1, (response.model, response.status, _reason_of(response)))
        if metrics.epoch > 1:
            add(i.TAKEOVERS)
        if metrics.store_failures:
            add(i.STORE_FAILURES, metrics.store_failures)

    def _time(self, response: Response, metrics: ResponseMetrics) -> None:
        observe, received_at = self._meter.observe, metrics.received_at
        model = (response.model,)
        if metrics.ended_at is not None:
            observe(i.RESPONSE_SECONDS, metrics.ended_at - received_at, model)
        if metrics.admitted_at is not None and metrics.epoch == 1:
            mode = "background" if response.background else "foreground"
            observe(i.QUEUE_SECONDS, metrics.admitted_at - received_at, (mode,))
        observe(i.TURNS, len(metrics.turns), model)
        for turn in metrics.turns:
            if turn.first_token_at is not None:
                observe(i.FIRST_TOKEN, turn.first_token_at - received_at, model)
                break
        for turn in metrics.turns:
            if turn.first_text_at is not None:
                observe(i.FIRST_TEXT, turn.first_text_at - received_at, model)
                break

    def _meter_turn(self, turn: TurnMetrics, model: str) -> None:
        if turn.kind not in MODEL_TURNS:
            return
        add, observe = self._meter.add, self._meter.observe
        gen_ai = (OPERATION, PROVIDER, model)
        for kind, tokens in (
            ("input", turn.input_tokens),
            ("cached", turn.cached_tokens),
            ("output", turn.output_tokens),
            ("reasoning", turn.reasoning_tokens),
        ):
            if tokens:
                add(i.TOKENS, tokens, (model, kind))
        observe(i.GEN_AI_TOKENS, turn.input_tokens, (*gen_ai, "input"))
        observe(i.GEN_AI_TOKENS, turn.output_tokens, (*gen_ai, "output"))
        if turn.is_repaired:
            add(i.REPAIRS, 1, (model,))
        ended_at = turn.last_token_at or turn.ended_at
        if ended_at is not None:
            error = "" if turn.reason else "incomplete"
            observe(i.GEN_AI_REQUEST, ended_at - turn.started_at, (*gen_ai, error))
        if turn.first_token_at is not None:
            observe(i.GEN_AI_FIRST_TOKEN, turn.first_token_at - turn.started_at, gen_ai)
        if turn.tokens_per_second:
            observe(i.GEN_AI_PER_TOKEN, 1 / turn.tokens_per_second, gen_ai)

    def _meter_call(self, call: ToolCallMetrics) -> None:
        tool = (call.type, "", "")
        if call.server in self._own_servers:
            tool = (call.type, call.server, call.name)
        elif call.name == LISTING:
            tool = (call.type, "", call.name)
        self._meter.add(i.TOOL_CALLS, 1, (*tool, call.result or "canceled"))
        if call.result in ("ok", "error"):
            self._meter.observe(i.TOOL_SECONDS, call.seconds, tool)

    def _count_tenant(self, tenant: str, response: Response) -> None:
        self._meter.add(i.TENANT_RESPONSES, 1, (tenant, response.status))
        if response.usage is not None:
            self._meter.add(i.TENANT_TOKENS, response.usage.input_tokens, (tenant, "input"))
            self._meter.add(i.TENANT_TOKENS, response.usage.output_tokens, (tenant, "output"))


def _reason_of(response: Response) -> str:
    if response.error is not None:
        return response.error.code or "error"
    return response.incomplete_details.reason if response.incomplete_details else ""
