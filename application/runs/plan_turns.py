"""Make the turns of a prepared request: what they are, and what they may use."""

from __future__ import annotations

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.show_items import ShowItems
from antiphon.application.input.submission import Submission
from antiphon.application.model.guards.ask_guards import Guards, ResponseGuards
from antiphon.application.ports import (
    AuditLog,
    Programs,
    Seal,
)
from antiphon.application.runs.diagnose_cache import (
    DiagnoseCache,
)
from antiphon.application.runs.prepare_turn import PreparedTurn
from antiphon.application.runs.turns import Plan, Turns
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.support.long_prompts import count_or_none, default_limit
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.telemetry.run_trace import KeepTraces
from antiphon.application.telemetry.trace_context import Propagation
from antiphon.application.tools.agents.sub_agents import AgentTools, SubAgents
from antiphon.application.tools.audit import CallRecords
from antiphon.application.tools.budgets import DEFAULT_BUDGETS, Budgets
from antiphon.application.tools.mcp import OpenMcpSessions
from antiphon.application.tools.outputs import ToolRoom
from antiphon.domain.errors import RequestError
from antiphon.domain.history.compaction import items_to_keep
from antiphon.domain.history.programs import open_programs
from antiphon.domain.items import CompactionTrigger
from antiphon.domain.kinds.multi_agent import ACTIONS, MULTI_AGENT_BETA, ROOT
from antiphon.domain.offers import mcp
from antiphon.domain.offers.offer import mcp_servers_of
from antiphon.domain.requests.request import CreateResponse


class RecordSinks(Struct, frozen=True, kw_only=True):
    """Where records of runs go besides the store of responses; None: nowhere."""

    audit_log: AuditLog | None = None
    traces: KeepTraces | None = None
    propagation: Propagation | None = None


class RunFeatures(Struct, frozen=True, kw_only=True):
    """The parts besides models and tools that runs may use; None: this server does not have it."""

    programs: Programs | None = None
    agents: AgentTools | None = None
    guards: Guards | None = None
    diagnose: DiagnoseCache | None = None


class PlanTurns:
    """Makes the turns of a prepared request; none is admitted yet."""

    def __init__(
        self,
        show_items: ShowItems,
        seal: Seal,
        open_sessions: OpenMcpSessions,
        *,
        budgets: Budgets = DEFAULT_BUDGETS,
        sinks: RecordSinks = RecordSinks(),  # noqa: B008 - frozen
        tool_room: ToolRoom | None = None,
        features: RunFeatures = RunFeatures(),  # noqa: B008 - frozen
    ) -> None:
        self._programs, self._agents = features.programs, features.agents
        self._show_items = show_items
        self._seal = seal
        self._open_sessions = open_sessions
        self._budgets = budgets
        self._audit_log, self._propagation = sinks.audit_log, sinks.propagation
        traces = sinks.traces
        self._traces = None if traces is None or traces.keep == "off" else traces
        self._diagnose = features.diagnose
        self._tool_room = tool_room or ToolRoom(BytesInWork())
        guards = features.guards
        self._guards = guards if guards is not None and guards.is_used else None

    def open_guards(self, submission: Submission, recorder: RunRecorder) -> ResponseGuards | None:
        """Return the guards of a response, None if it has none. Raises: GuardFailed."""
        if self._guards is None and not submission.caller.policy.guards:
            return None
        return (self._guards or Guards()).open(
            submission.caller,
            response_id=submission.response_id,
            model=submission.request.model or "",
            recorder=recorder,
            moderation=submission.request.moderation,
        )

    async def __call__(
        self,
        submission: Submission,
        prepared: PreparedTurn,
        recorder: RunRecorder,
        *,
        guards: ResponseGuards | None,
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
        diagnose = None if request.comparison_response_id is None else self._diagnose
        if diagnose is not None and not prepared.turn.trace_steps:  # the transcript has the tokens
            prepared = replace(prepared, turn=replace(prepared.turn, trace_steps=1))
        plan = replace(await plan_of(submission, prepared), programs=self._programs)
        if guards is not None:
            plan = replace(plan, guards=guards)
        if diagnose is not None:
            compare = partial(diagnose, submission, prepared, compacts=plan.compacts)
            plan = replace(plan, diagnose=compare)
        agent_name = submission.agent_name
        if agent_name is not None:
            agents = self._open_agents(submission, prepared, recorder)
            callers = {**plan.tool_callers, **dict.fromkeys(ACTIONS, agents)}
            plan = replace(plan, agent=agent_name, agents=agents, tool_callers=callers)
        return Turns(
            plan,
            self._show_items,
            self._seal,
            partial(self._open_sessions, tenant, response_id),
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
            outputs=self._tool_room.open_response(tenant, self._budgets.response_bytes),
        )

    def _open_agents(
        self, submission: Submission, prepared: PreparedTurn, recorder: RunRecorder
    ) -> SubAgents:
        """Raises: RequestError if the response may have no sub-agents."""
        tools = self._agents
        if tools is None:
            raise _invalid_agents("This server runs no sub-agents (the setting agents.total).")
        params = submission.request.multi_agent
        wanted = None if params is None else params.max_concurrent_subagents
        if wanted is not None and wanted > tools.limits.concurrent:
            raise RequestError(
                f"At most {tools.limits.concurrent} sub-agents may work at a time here.",
                param="multi_agent.max_concurrent_subagents",
                code="integer_above_max_value",
            )
        if submission.agent is None and not submission.may_have_agents:
            raise _invalid_agents(
                f"'multi_agent' needs the header 'OpenAI-Beta: {MULTI_AGENT_BETA}'."
            )
        conversation = [*prepared.history, *prepared.input]
        return SubAgents(tools, submission, conversation, recorder)


def _invalid_agents(message: str) -> RequestError:
    return RequestError(message, param="multi_agent", code="unsupported_parameter")


async def plan_of(submission: Submission, prepared: PreparedTurn) -> Plan:
    """Return the plan. Raises: RequestError."""
    request, caller = submission.request, submission.caller
    has_options = request.generate is not None or request.prompt_cache_options is not None
    warms_up = has_options and request.is_prewarm
    has_trigger = bool(prepared.input) and isinstance(prepared.input[-1].item, CompactionTrigger)
    if has_trigger and not prepared.turn.items:
        raise RequestError("There is no conversation to compact.", param="input")
    servers = mcp_servers_of(prepared.offer) if prepared.offer.definitions else []
    labels = dict.fromkeys([server.server_label for server in servers]) if servers else {}
    return Plan(
        tenant=caller.tenant,
        policy=caller.policy,
        model=prepared.model,
        offer=prepared.offer,
        turn=prepared.turn,
        compacts=not warms_up
        and (
            has_trigger
            or (bool(request.context_management) and await _is_too_long(submission, prepared))
        ),
        answers=not has_trigger,
        warms_up=warms_up,
        summary=_summary_of(request) if request.reasoning else None,
        mcp_servers=servers,
        unlisted_labels=[
            label for label in labels if mcp.last_listing(label, prepared.conversation) is None
        ],
        approved_calls=prepared.approved_calls,
        max_calls=request.max_tool_calls,
        tool_callers=prepared.tool_callers,
        conversation=prepared.conversation,
        refused=submission.refused,
        steers=submission.steers,
    )


async def _is_too_long(submission: Submission, prepared: PreparedTurn) -> bool:
    request, turn = submission.request, prepared.turn
    agent = submission.agent_name or ROOT
    compaction = request.compaction
    if open_programs(prepared.conversation, len(prepared.conversation), agent):
        return False  # a program that waits goes on first: a summary could not
    if compaction is None or len(items_to_keep(turn.items)) == len(turn.items):
        return False  # not requested, or compaction would remove nothing
    tokens = await count_or_none(prepared.model, turn)
    return tokens is None or tokens > (
        compaction.compact_threshold or default_limit(prepared.model)
    )


def _summary_of(request: CreateResponse) -> str | None:
    reasoning = request.reasoning
    if reasoning is None or request.include_reasoning is False:
        return None
    return reasoning.summary or reasoning.generate_summary
