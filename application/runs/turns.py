"""The loop over turns: the turns of one response, one after another.

A turn is anything that yields deltas (ports.ModelTurn), such as an answer or the compaction before
it. A run reads all turns in the same way. So a feature that needs the model again adds a turn to
`Turns.iterate`; the run and the sequencer do not change.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from functools import cached_property, partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.show_items import ShowItems
from antiphon.application.model.compaction import CompactingTurn, compaction_of
from antiphon.application.model.guards.ask_guards import ResponseGuards
from antiphon.application.model.guards.guarded_turn import RefusedTurn, guarded
from antiphon.application.model.guards.texts import texts_in
from antiphon.application.model.reasoning_summaries import SummarizedTurn
from antiphon.application.model.tool_search import ToolSearchTurn, tool_searches_in
from antiphon.application.model.warm_up import WarmUpTurn, shortest_turn
from antiphon.application.ports import (
    AdmitPrompt,
    Json,
    Model,
    ModelTurn,
    Programs,
    Seal,
    Turn,
    TurnFacts,
)
from antiphon.application.runs.diagnose_cache import (
    Diagnosis,
    is_answer,
)
from antiphon.application.telemetry.trace_context import TRACE_HEADERS
from antiphon.application.tools.agents.sub_agents import SubAgents
from antiphon.application.tools.audit import CallRecords
from antiphon.application.tools.budgets import MAX_PARALLEL_CALLS, Budgets
from antiphon.application.tools.calls import ToolCaller, ToolCallingTurn, ToolCalls
from antiphon.application.tools.citations import CitingTurn
from antiphon.application.tools.mcp import McpSessions, McpTurn
from antiphon.application.tools.outputs import ResponseOutputs
from antiphon.application.tools.programs import ProgramTurn, RunPrograms
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.deltas import CutReason, Delta, TurnEnd
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError
from antiphon.domain.history.agents import open_calls, own_items
from antiphon.domain.history.programs import (
    extend_prompt,
    items_of_programs,
    open_programs,
)
from antiphon.domain.items import AnyItem, has_another_turn
from antiphon.domain.kinds.multi_agent import ROOT
from antiphon.domain.offers.mcp import AnsweredCall, listings_by_label
from antiphon.domain.offers.offer import Offer, with_listings, with_loaded_tools
from antiphon.domain.offers.tool_search import search
from antiphon.domain.responses.guards import Refuse, ResponseModeration, Stop
from antiphon.domain.responses.steering import Steers
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.tools import McpTool


class Plan(Struct, frozen=True, kw_only=True):
    """The plan for the turns of one response.

    `compacts`: the first turn compacts the conversation. `answers`: the model answers.
    `warms_up`: the model does not answer; its prompt is only cached.
    `summary`: the length of reasoning summaries, or None for no summaries.
    `mcp_servers`: the MCP servers whose tools the model may call. `unlisted_labels`: the labels of
    those whose tools must be listed first. `approved_calls`: MCP calls to run before the model's
    turn. `max_calls`: the request's limit for tool calls. `tool_callers`: what runs the calls of
    this server's own tools, by kind. `conversation`: the items before the response. `programs` runs
    programs that models write; `agent` is whose response it is. `steers`: what the client adds
    while the response runs. `refused` is the verdict of a guard on the request, `guards` are those
    that see what follows. `diagnose` compares the prompt of the first answer with another
    response's; None if the client asks for no diagnostics of the prompt cache. `agents` are the
    sub-agents, if it may have any.
    """

    tenant: str
    policy: KeyPolicy
    model: Model
    offer: Offer
    turn: Turn
    compacts: bool = False
    answers: bool = True
    warms_up: bool = False
    summary: str | None = None
    mcp_servers: Sequence[McpTool] = ()
    unlisted_labels: Sequence[str] = ()
    approved_calls: Sequence[AnsweredCall] = ()
    max_calls: int | None = None
    tool_callers: Mapping[str, ToolCaller] = {}
    conversation: Sequence[AnyItem] = ()
    programs: Programs | None = None
    refused: Refuse | Stop | None = None
    guards: ResponseGuards | None = None
    steers: Steers | None = None
    diagnose: Callable[[ModelTurn], Awaitable[Diagnosis]] | None = None
    agent: str = ROOT
    agents: SubAgents | None = None


class Turns:
    """The turns of one response: `start` admits the first one, then `iterate` is read once."""

    _first: ModelTurn

    def __init__(
        self,
        plan: Plan,
        show_items: ShowItems,
        seal: Seal,
        open_sessions: Callable[[Sequence[McpTool]], McpSessions],
        budgets: Budgets,
        *,
        request_id: str,
        records: CallRecords,
        outputs: ResponseOutputs,
    ) -> None:
        self._plan = plan
        self._max_turns = budgets.turns
        self._open_sessions = open_sessions
        self._budgets = budgets
        self._show_items = show_items
        self._seal = seal
        self._request_id = request_id
        self._records = records
        self._outputs = outputs
        self._admitted_count = 0
        self._admit_prompt: AdmitPrompt | None = None
        self._answer: ModelTurn | None = None

    @cached_property
    def _sessions(self) -> McpSessions:
        return self._open_sessions(self._plan.mcp_servers)

    @cached_property
    def _calls(self) -> ToolCalls:
        plan = self._plan
        return ToolCalls(
            {"mcp": self._sessions, **plan.tool_callers},
            plan.max_calls,
            self._budgets,
            max_parallel=MAX_PARALLEL_CALLS if plan.turn.parallel_tool_calls else 1,
            records=self._records,
            outputs=self._outputs,
            guards=plan.guards,
        )

    @cached_property
    def _programs(self) -> RunPrograms:
        return RunPrograms(
            programs=self._plan.programs,
            calls=self._calls,
            tenant=self._plan.tenant,
            earlier=items_of_programs(self._plan.conversation),
            agent=self._plan.agent,
        )

    @property
    def first(self) -> Turn:
        """The turn that comes first, before any compaction of it."""
        return self._plan.turn

    async def start(self, admit: AdmitPrompt | None = None) -> None:
        """Admit the first turn, whose prompt `admit` may delay or refuse.

        Raises: RequestError, ServerOverloaded, EngineDead.
        """
        turn = self._plan.turn
        if (agents := self._plan.agents) is not None and turn.sampling.max_tokens is not None:
            turn = _with_max_tokens(turn, agents.first_share(turn.sampling.max_tokens))
        if self._plan.refused is not None:
            self._first = RefusedTurn(self._plan.refused)
            return
        self._admit_prompt = admit
        start = self._start_compaction if self._plan.compacts else self._start_first_answer
        self._first = await start(turn)

    async def diagnose(self, turn: ModelTurn) -> Diagnosis | None:
        """Diagnose the prompt cache, if the client asks and this turn is an answer."""
        diagnose = self._plan.diagnose
        return None if diagnose is None or not is_answer(turn) else await diagnose(turn)

    async def moderate(self, output: Sequence[AnyItem]) -> ResponseModeration | None:
        """Return the moderation of the response, if the request asks for it."""
        guards = self._plan.guards
        if guards is None or not guards.moderates:
            return None
        return await guards.moderate(texts_in(msgspec.to_builtins(output)))

    async def aclose(self) -> None:
        """Abort the first turn, if `iterate` will not be read."""
        await self._first.aclose()

    def release(self) -> None:
        """Give back what the output of tools holds, once the response is stored."""
        self._outputs.release()

    async def iterate(
        self, output: Sequence[AnyItem], usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        """Yield the turns; meanwhile the caller adds to `output` and `usages` after each turn."""
        if self._records.trace is not None:
            TRACE_HEADERS.set(self._records.trace.headers_of_response())
        plan, turn, last_turn = self._plan, self._plan.turn, self._first
        if isinstance(last_turn, ProgramTurn):
            last_turn = last_turn.with_output(output)
        async with (
            aclosing(self._sessions) if plan.mcp_servers else nullcontext(),
            plan.agents.running(output, partial(self._count_tokens, usages))
            if plan.agents
            else nullcontext(),
        ):
            first_item = first_usage = 0  # where the answer starts in `output` and `usages`
            yield last_turn
            if plan.compacts:
                if not plan.answers:
                    return
                shown = await self._show_items(
                    output, tenant=plan.tenant, policy=plan.policy, model=plan.model
                )
                turn = replace(turn, items=shown.items)
                first_item, first_usage = len(output), len(usages)
                answered = turn
                if plan.agents is not None and turn.sampling.max_tokens is not None:
                    left = turn.sampling.max_tokens - await plan.agents.shares.taken()
                    answered = _with_max_tokens(turn, max(1, left))
                last_turn = await self._start_first_answer(answered)
                yield last_turn
            is_own_turn = isinstance(last_turn, McpTurn | ProgramTurn)
            if not plan.offer.definitions and not is_own_turn:
                return  # there is nothing that this server could have run
            further_turns = self._iterate_further(
                turn, last_turn, output, usages, first_item, first_usage
            )
            async with aclosing(further_turns):
                async for further_turn in further_turns:
                    last_turn = further_turn
                    yield further_turn
            while (agents := plan.agents) is not None:
                if agents.are_active:
                    yield JoiningTurn(agents.join(self._calls.recall), after=last_turn)
                elif agents.client_outputs.may_go_on:
                    yield JoiningTurn(agents.await_client(self._calls.recall), after=last_turn)
                else:
                    return

    def _count_tokens(self, usages: Sequence[TurnUsage]) -> int:
        """Return the output tokens of all turns, the one that runs its calls now included."""
        current = () if self._answer is None else self._answer.tokens_used()
        return sum(usage.output for usage in (*usages, *current))

    async def _iterate_further(
        self,
        turn: Turn,
        last_turn: ModelTurn,
        output: Sequence[AnyItem],
        usages: Sequence[TurnUsage],
        first_item: int,
        first_usage: int,
    ) -> AsyncGenerator[ModelTurn]:
        """Yield the turns that follow `last_turn`, as long as its output needs them.

        After a turn come the results of its tool searches (in `output` from `first_item` on), then
        the model's next turn, which sees what the server did. All turns share the response's token
        limit (docs/reference/api.md#hosted-tools); `usages` counts from `first_usage` on.
        """
        offer, max_tokens, agents = self._plan.offer, turn.sampling.max_tokens, self._plan.agents
        answer_count, last_usage = 0, first_usage
        while True:
            tools = [definition.tool for definition in offer.definitions]
            search_results = [
                search(tool_search.arguments, tools)
                for tool_search in tool_searches_in(output[first_item:])
            ]
            if search_results:
                yield ToolSearchTurn(search_results, after=last_turn)
            if isinstance(last_turn, McpTurn):
                offer = with_listings(offer, listings_by_label(output[first_item:]))
            if not isinstance(last_turn, ProgramTurn) and (
                programs := self._programs.turn(output, offer.program_specs, first_item)
            ):
                yield programs
            if self._plan.guards is not None and self._plan.guards.has_stopped:
                yield OutOfBudgetTurn("content_filter", after=last_turn)
                return
            new_items, is_answered = output[first_item:], False
            if open_calls(new_items) and agents is not None and agents.client_outputs.may_come:
                last_turn = JoiningTurn(agents.await_client(self._calls.recall), after=last_turn)
                yield last_turn
                if programs := self._programs.turn(output, offer.program_specs, first_item):
                    yield programs
                new_items, is_answered = output[first_item:], True
            if open_calls(new_items):
                return
            if agents is not None:
                new_items = own_items(new_items, agents.name)
            if not is_answered and not any(map(has_another_turn, new_items)):
                return
            if self._plan.steers is not None and self._plan.steers.are_waiting:
                yield OutOfBudgetTurn("steered", after=last_turn)
                return
            known_tokens = None
            if not isinstance(last_turn, McpTurn | ProgramTurn):
                loaded_tools = [tool for result in search_results for tool in result]
                offer = with_loaded_tools(offer, loaded_tools)
                answer_count += 1
                known_tokens = usages[last_usage].input + usages[last_usage].output
            remaining_tokens = await self._count_remaining(max_tokens, usages[first_usage:])
            if agents is not None:
                if remaining_tokens is not None and remaining_tokens < 1 and agents.are_active:
                    # What they do not use of their shares is free when they have ended.
                    yield JoiningTurn(agents.join(self._calls.recall), after=last_turn)
                    new_items = own_items(output[first_item:], agents.name)
                    remaining_tokens = await self._count_remaining(max_tokens, usages[first_usage:])
                new_items = [*new_items, *await agents.read_messages(self._calls.recall)]
            if remaining_tokens is not None and remaining_tokens < 1:
                yield OutOfBudgetTurn("length", after=last_turn)
                return
            if answer_count == self._max_turns:
                yield OutOfBudgetTurn("turns", after=last_turn)
                return
            turn = replace(
                turn,
                items=extend_prompt(
                    turn.items, self._show_items.show_outputs(new_items, self._plan.model)
                ),
                tools=offer.specs,
                choice=offer.choice,
                sampling=replace(turn.sampling, max_tokens=remaining_tokens),
                known_tokens=known_tokens,
            )
            try:
                next_turn = await self._start_answer(turn)
            except RequestError as error:
                if error.code != CONTEXT_EXCEEDED:
                    raise
                # The results are too long for the model. The response keeps them and ends.
                yield OutOfBudgetTurn("context", after=last_turn)
                return
            first_item, last_usage, last_turn = len(output), len(usages), next_turn
            yield last_turn

    async def _count_remaining(
        self, max_tokens: int | None, usages: Sequence[TurnUsage]
    ) -> int | None:
        """Return the output tokens that the next turn may have after turns with these usages."""
        if max_tokens is None:
            return None
        agents, used = self._plan.agents, sum(usage.output for usage in usages)
        return max_tokens - used - (0 if agents is None else await agents.shares.taken())

    async def _start_first_answer(self, turn: Turn) -> ModelTurn:
        plan = self._plan
        has_mcp_work = plan.unlisted_labels or plan.approved_calls
        has_programs = open_programs(plan.conversation, len(plan.conversation), plan.agent)
        if not (has_mcp_work or has_programs) or not plan.answers or plan.warms_up:
            return await self._start_answer(turn)
        # Raises errors of the conversation now, before any tool is called.
        tokens = await plan.model.count(turn)
        if self._admit_prompt is not None:
            await self._admit_prompt(tokens)
            self._admit_prompt = None
        if not has_mcp_work:
            programs = self._programs.turn((), plan.offer.program_specs)
            assert programs is not None, "there are some"
            return programs
        return McpTurn(self._sessions, self._calls, plan.unlisted_labels, plan.approved_calls)

    async def _start_compaction(self, turn: Turn) -> ModelTurn:
        admitted = await self._admit(compaction_of(turn))
        return CompactingTurn(admitted, turn.items, partial(self._seal, self._plan.tenant))

    async def _start_answer(self, turn: Turn) -> ModelTurn:
        if self._plan.warms_up:
            return WarmUpTurn(await self._admit(shortest_turn(turn)))
        admitted = self._answer = await self._admit(turn)
        has_calls = bool(self._plan.mcp_servers or self._plan.tool_callers)
        if has_calls and self._calls.cite_functions:
            admitted = CitingTurn(admitted, self._calls.cite_functions)
        if self._plan.guards is not None:
            admitted = self._guard(admitted)
        if has_calls:
            admitted = ToolCallingTurn(admitted, self._calls)
        if self._plan.summary is None:
            return admitted
        effort = "none" if "none" in self._plan.model.efforts else None
        return SummarizedTurn(
            admitted, turn, self._start_summary, length=self._plan.summary, effort=effort
        )

    async def _start_summary(self, turn: Turn) -> ModelTurn:
        return self._guard(await self._admit(turn))

    def _guard(self, turn: ModelTurn) -> ModelTurn:
        plan = self._plan
        has_calls = bool(plan.mcp_servers or plan.tool_callers)
        return guarded(turn, plan.guards, lambda call: has_calls and self._calls.runs(call))

    async def _admit(self, turn: Turn) -> ModelTurn:
        if (trace := self._records.trace) is not None:
            number = self._records.recorder.turn_number
            turn = replace(turn, trace_headers=trace.headers_of_turn(number, turn.trace_headers))
        if (progress := self._records.recorder.progress) is not None:
            turn = replace(turn, progress=progress.open_turn())
        request_id = f"{self._request_id}_{self._admitted_count}"
        self._admitted_count += 1
        admit, self._admit_prompt = self._admit_prompt, None  # further turns are part of the run
        if admit is None:
            return await self._plan.model.start_turn(turn, request_id=request_id)
        return await self._plan.model.start_turn(turn, request_id=request_id, admit=admit)


def _with_max_tokens(turn: Turn, max_tokens: int) -> Turn:
    return replace(turn, sampling=replace(turn.sampling, max_tokens=max_tokens))


class JoiningTurn(ModelTurn):
    """Waits while the model does not write, and shows what comes: of the sub-agents that still
    work, or of the client, which may inject outputs."""

    def __init__(self, batches: AsyncGenerator[list[Delta]], *, after: ModelTurn) -> None:
        self._batches = batches
        self._after = after

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        async with aclosing(self._batches) as batches:
            async for batch in batches:
                yield batch
        yield [TurnEnd("stop", TurnUsage())]

    async def aclose(self) -> None:
        pass

    def facts(self) -> TurnFacts:
        return TurnFacts(kind="agents")

    def messages(self) -> tuple[list[Json], list[Json]]:
        return self._after.messages()


class OutOfBudgetTurn(ModelTurn):
    """A turn that ends before it starts: the turns up to `after` used the whole budget, or the
    client has steered the response."""

    def __init__(self, reason: CutReason, *, after: ModelTurn) -> None:
        self._reason = reason
        self._after = after

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        yield [TurnEnd(self._reason, TurnUsage())]

    async def aclose(self) -> None:
        pass

    def facts(self) -> TurnFacts:
        return TurnFacts(kind="budget")

    def messages(self) -> tuple[list[Json], list[Json]]:
        return self._after.messages()


# --- which turns a response needs ----------------------------------------------------------------
