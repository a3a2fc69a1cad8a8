"""Decide which turns a response needs, before the first one is admitted."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.application.input.show_items import ShowItems
from antiphon.application.input.submission import Submission
from antiphon.application.ports import AuditLog, Model, Seal, ToolServers
from antiphon.application.runs.prepare_turn import PreparedTurn
from antiphon.application.runs.turns import Plan, Turns
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.telemetry.run_trace import KeepTraces
from antiphon.application.telemetry.trace_context import Propagation
from antiphon.application.tools.audit import CallRecords
from antiphon.application.tools.budgets import DEFAULT_BUDGETS, Budgets
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError
from antiphon.domain.history.compaction import items_to_keep
from antiphon.domain.items import CompactionTrigger
from antiphon.domain.offers import mcp
from antiphon.domain.offers.offer import mcp_servers_of
from antiphon.domain.requests.request import CreateResponse

DEFAULT_COMPACT_THRESHOLD = 0.8
"""The fraction of the context length at which a conversation is compacted by default."""


class PlanTurns:
    """Makes the turns of a prepared request; none is admitted yet."""

    def __init__(
        self,
        show_items: ShowItems,
        seal: Seal,
        tool_servers: ToolServers | None = None,
        *,
        budgets: Budgets = DEFAULT_BUDGETS,
        audit_log: AuditLog | None = None,
        traces: KeepTraces | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        self._show_items = show_items
        self._seal = seal
        self._tool_servers = tool_servers
        self._budgets = budgets
        self._audit_log = audit_log
        self._traces = None if traces is None or traces.keep == "off" else traces
        self._propagation = propagation

    async def __call__(
        self,
        submission: Submission,
        prepared: PreparedTurn,
        recorder: RunRecorder,
        *,
        epoch: int | None = None,
    ) -> Turns:
        """Return the turns; `epoch` is the run's, if it goes on after another server's.

        Raises: RequestError.
        """
        request, response_id = submission.request, submission.response_id
        tenant = submission.caller.tenant
        if self._traces is not None and (trace := self._traces.open(request)) is not None:
            recorder.trace = trace
            turn = replace(prepared.turn, trace_steps=trace.max_steps)
            prepared = replace(prepared, turn=turn)
        plan = await plan_of(request, prepared, tenant=tenant)
        return Turns(
            plan,
            self._show_items,
            self._seal,
            self._tool_servers,
            self._budgets,
            request_id=response_id if epoch is None else f"{response_id}_{epoch}",
            records=CallRecords(
                recorder=recorder,
                trace=None
                if self._propagation is None
                else self._propagation.trace_of(
                    response_id, recorder.traceparent, is_linked=recorder.links_trace
                ),
                log=self._audit_log,
                tenant=tenant,
                key_id=submission.caller.key_id,
                response_id=response_id,
            ),
        )


async def plan_of(request: CreateResponse, prepared: PreparedTurn, *, tenant: str) -> Plan:
    """Return the plan. Raises: RequestError."""
    warms_up = request.is_prewarm
    has_trigger = bool(prepared.input) and isinstance(prepared.input[-1].item, CompactionTrigger)
    if has_trigger and not prepared.turn.items:
        raise RequestError("There is no conversation to compact.", param="input")
    servers = mcp_servers_of(prepared.offer) if prepared.offer.definitions else []
    labels = dict.fromkeys(server.server_label for server in servers)
    return Plan(
        tenant=tenant,
        model=prepared.model,
        offer=prepared.offer,
        turn=prepared.turn,
        compacts=not warms_up
        and (
            has_trigger
            or (bool(request.context_management) and await _is_too_long(request, prepared))
        ),
        answers=not has_trigger,
        warms_up=warms_up,
        summary=_summary_of(request) if request.reasoning else None,
        mcp_servers=servers,
        unlisted_labels=[
            label for label in labels if mcp.listed_tools(label, prepared.conversation) is None
        ],
        approved_calls=prepared.approved_calls,
        max_calls=request.max_tool_calls,
        tool_callers=prepared.tool_callers,
    )


async def _is_too_long(request: CreateResponse, prepared: PreparedTurn) -> bool:
    turn = prepared.turn
    if not request.context_management or len(items_to_keep(turn.items)) == len(turn.items):
        return False  # not requested, or compaction would remove nothing
    threshold = request.context_management[0].compact_threshold
    try:
        tokens = await prepared.model.count(turn)
    except RequestError as error:
        if error.code != CONTEXT_EXCEEDED:
            raise
        return True  # so long that its tokens are not even counted
    return tokens > (threshold or _default_threshold(prepared.model))


def _default_threshold(model: Model) -> int:
    return int(model.context_length * DEFAULT_COMPACT_THRESHOLD)


def _summary_of(request: CreateResponse) -> str | None:
    reasoning = request.reasoning
    if reasoning is None or request.include_reasoning is False:
        return None
    return reasoning.summary or reasoning.generate_summary
