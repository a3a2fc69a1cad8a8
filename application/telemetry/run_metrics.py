"""Count and time the runs that have ended, from their records."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.application.ports import EndedRun, Meter
from antiphon.application.telemetry import instruments as i
from antiphon.domain.responses.metrics import LISTING, MODEL_TURNS, ToolCallMetrics, TurnMetrics

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
        self._count(ended)
        self._time(ended)
        for turn in ended.metrics.turns:
            self._meter_turn(turn, turn.model or ended.model)
            for call in turn.tool_calls:
                self._meter_call(call)
        for each in ended.metrics.guards:
            self._meter.add(i.GUARD_VERDICTS, each.count, (each.guard, each.place, each.verdict))
            self._meter.add(i.GUARD_SECONDS, each.seconds, (each.guard, each.place))
        for program in ended.metrics.programs:
            self._meter.add(i.PROGRAMS, 1, (ended.model, program.result))
            self._meter.observe(i.PROGRAM_CALLS, program.calls, (ended.model,))
        if self._by_tenant:
            self._count_tenant(ended)

    def _count(self, ended: EndedRun) -> None:
        add, metrics = self._meter.add, ended.metrics
        reason = ended.error or ended.incomplete_reason
        add(i.RESPONSES, 1, (ended.model, metrics.door, ended.status, reason))
        if metrics.epoch > 1:
            add(i.TAKEOVERS)
        if metrics.store_failures:
            add(i.STORE_FAILURES, metrics.store_failures)

    def _time(self, ended: EndedRun) -> None:
        observe, metrics, model = self._meter.observe, ended.metrics, (ended.model,)
        received_at = metrics.received_at
        if metrics.ended_at is not None:
            observe(i.RESPONSE_SECONDS, metrics.ended_at - received_at, model)
        if metrics.admitted_at is not None and metrics.epoch == 1:
            mode = "background" if ended.background else "foreground"
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

    def _count_tenant(self, ended: EndedRun) -> None:
        self._meter.add(i.TENANT_RESPONSES, 1, (ended.tenant, ended.status))
        if ended.usage is not None:
            self._meter.add(i.TENANT_TOKENS, ended.usage.input_tokens, (ended.tenant, "input"))
            self._meter.add(i.TENANT_TOKENS, ended.usage.output_tokens, (ended.tenant, "output"))
