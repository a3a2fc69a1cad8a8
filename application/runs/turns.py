"""The loop over turns: which turns of the model make a response, one after another.

A turn is anything that yields deltas (ports.ModelTurn): an answer, a compaction before it. The run
reads them alike. So what needs the model once more is one more turn in `Turns.iterate`, and neither
the run nor the sequencer knows of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.show_items import ShowItems
from antiphon.application.model.compaction import CompactingTurn, compaction_of
from antiphon.application.model.reasoning_summaries import SummarizedTurn
from antiphon.application.model.tool_search import ToolSearchTurn, tool_searches_in
from antiphon.application.model.warm_up import WarmUp, shortest_turn
from antiphon.application.ports import Json, Model, ModelTurn, Seal, ToolServers, Turn
from antiphon.application.tools.budgets import MAX_PARALLEL_CALLS, Budgets
from antiphon.application.tools.calls import ToolCaller, ToolCallingTurn, ToolCalls
from antiphon.application.tools.citations import CitingTurn
from antiphon.application.tools.mcp import McpSessions, McpTurn
from antiphon.domain.deltas import Delta, TurnEnd
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError
from antiphon.domain.items import (
    AnyItem,
    CodeInterpreterCall,
    FileSearchCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    ShellCallOutput,
    ToolSearchOutput,
    WebSearchCall,
    call_id_of,
    is_server_run_call,
)
from antiphon.domain.mcp import ApprovedCall, listed_tools_by_label
from antiphon.domain.offers import Offer, with_listed_tools, with_loaded_tools
from antiphon.domain.tool_search import search
from antiphon.domain.tools import McpTool
from antiphon.domain.usage import TurnUsage

DONE_HERE = (
    McpListTools,
    McpCall,
    ToolSearchOutput,
    CodeInterpreterCall,
    WebSearchCall,
    FileSearchCall,
    ShellCallOutput,
)
"""Items of what this server did: the model goes on after them."""


class Plan(Struct, frozen=True, kw_only=True):
    """What the turns of one response are made from.

    `compacts`: the conversation is compacted first; `answers`: then, or at once, it is answered.
    `warms_up`: nothing is answered, only the prompt is cached.
    `summary`: how long summaries of reasoning are to be; None for none.
    `servers` are the MCP servers whose tools may be called, `unlisted` the labels of those to ask
    for their tools, `approved_calls` the calls to run before the model's turn, `max_calls` the
    limit. `hosted` run the calls of the tools that this server has, by their kind.
    """

    tenant: str
    model: Model
    offered: Offer
    turn: Turn
    compacts: bool = False
    answers: bool = True
    warms_up: bool = False
    summary: str | None = None
    servers: Sequence[McpTool] = ()
    unlisted: Sequence[str] = ()
    approved_calls: Sequence[ApprovedCall] = ()
    max_calls: int | None = None
    hosted: Mapping[str, ToolCaller] = {}

    @property
    def opens(self) -> bool:
        """Whether something is to be done before the model's first answer."""
        return bool(self.unlisted or self.approved_calls) and self.answers and not self.warms_up


class Turns:
    """The turns of one response. `start` admits the first; then `iterate` can be read, once."""

    _first: ModelTurn

    def __init__(
        self,
        plan: Plan,
        show_items: ShowItems,
        seal: Seal,
        tool_servers: ToolServers | None,
        budgets: Budgets,
        *,
        response_id: str,
    ) -> None:
        self._plan = plan
        self._most_turns = budgets.turns
        self._sessions = McpSessions(tool_servers, plan.servers)
        self._calls = ToolCalls(
            {"mcp": self._sessions, **plan.hosted},
            plan.max_calls,
            budgets,
            at_once=MAX_PARALLEL_CALLS if plan.turn.parallel_tool_calls else 1,
        )
        self._show_items = show_items
        self._seal = seal
        self._response_id = response_id
        self._admitted = 0

    async def start(self) -> None:
        """Admit the first turn. Raises: RequestError, TooManyRequests, EngineDead."""
        turn = self._plan.turn
        self._first = await (self._compact(turn) if self._plan.compacts else self._begun(turn))

    async def aclose(self) -> None:
        """Abort the first turn, where `iterate` is not going to be read."""
        await self._first.aclose()

    async def iterate(
        self, output: Sequence[AnyItem], usages: Sequence[TurnUsage]
    ) -> AsyncGenerator[ModelTurn]:
        """Yield the turns; `output` and `usages`, of those that are over, grow meanwhile."""
        async with aclosing(self._sessions):
            plan, turn, latest = self._plan, self._plan.turn, self._first
            seen = before = 0  # items and usages that are no part of the answer
            yield latest
            if plan.compacts:
                if not plan.answers:
                    return
                shown = await self._show_items(output, tenant=plan.tenant, model=plan.model)
                turn = replace(turn, items=shown.items)
                seen, before = len(output), len(usages)
                latest = await self._begun(turn)
                yield latest
            later = self._further(turn, latest, output, usages, seen, before)
            async with aclosing(later) as further:
                async for each in further:
                    yield each

    async def _further(
        self,
        turn: Turn,
        latest: ModelTurn,
        output: Sequence[AnyItem],
        usages: Sequence[TurnUsage],
        seen: int,
        before: int,
    ) -> AsyncGenerator[ModelTurn]:
        """Yield the turns that the latest one makes necessary: what its searches (in `output`, from
        `seen` on) have found, then the model's next turn, which sees what the server has done.
        All of them share the tokens that the response may have
        (docs/reference/api.md#hosted-tools): `usages` counts
        from `before` on.
        """
        offered, limit = self._plan.offered, turn.sampling.max_tokens
        answers, of_latest = 0, before
        while True:
            tools = [each.tool for each in offered.definitions]
            found = [search(each.arguments, tools) for each in tool_searches_in(output[seen:])]
            if found:
                yield ToolSearchTurn(found, after=latest)
            new = output[seen:]
            if not any(isinstance(item, DONE_HERE) for item in new) or any(map(_waits, new)):
                return
            known = None
            if isinstance(latest, McpTurn):
                offered = with_listed_tools(offered, listed_tools_by_label(new))
            else:
                offered = with_loaded_tools(offered, [tool for each in found for tool in each])
                answers, known = answers + 1, usages[of_latest].input + usages[of_latest].output
            spent = sum(usage.output for usage in usages[before:])
            tokens_left = None if limit is None else limit - spent
            if tokens_left is not None and tokens_left < 1:
                yield OutOfBudgetTurn("length", after=latest)
                return
            if answers == self._most_turns:
                yield OutOfBudgetTurn("turns", after=latest)
                return
            turn = replace(
                turn,
                items=[*turn.items, *new],
                tools=offered.specs,
                choice=offered.choice,
                sampling=replace(turn.sampling, max_tokens=tokens_left),
                known_tokens=known,
            )
            try:
                following = await self._answer(turn)
            except RequestError as error:
                if error.code != CONTEXT_EXCEEDED:
                    raise
                # What the server has done is longer than the model can read: it is kept.
                yield OutOfBudgetTurn("context", after=latest)
                return
            seen, of_latest, latest = len(output), len(usages), following
            yield latest

    async def _begun(self, turn: Turn) -> ModelTurn:
        if not self._plan.opens:
            return await self._answer(turn)
        # What is wrong with the conversation is found now, not after servers were asked.
        await self._plan.model.count(turn)
        return McpTurn(self._sessions, self._calls, self._plan.unlisted, self._plan.approved_calls)

    async def _compact(self, turn: Turn) -> ModelTurn:
        admitted = await self._admit(compaction_of(turn))
        return CompactingTurn(admitted, turn.items, partial(self._seal, self._plan.tenant))

    async def _answer(self, turn: Turn) -> ModelTurn:
        if self._plan.warms_up:
            return WarmUp(await self._admit(shortest_turn(turn)))
        admitted = await self._admit(turn)
        if self._calls.cites:
            admitted = CitingTurn(admitted, self._calls.cites)
        if self._plan.servers or self._plan.hosted:
            admitted = ToolCallingTurn(admitted, self._calls)
        if self._plan.summary is None:
            return admitted
        silent = "none" if "none" in self._plan.model.efforts else None
        return SummarizedTurn(admitted, turn, self._admit, length=self._plan.summary, effort=silent)

    async def _admit(self, turn: Turn) -> ModelTurn:
        request_id = f"{self._response_id}_{self._admitted}"
        self._admitted += 1
        return await self._plan.model.start_turn(turn, request_id=request_id)


class OutOfBudgetTurn(ModelTurn):
    """The turn for which those up to `after` have left no budget: it is cut before it has begun."""

    def __init__(self, reason: str, *, after: ModelTurn) -> None:
        self._reason = reason
        self._after = after

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        yield [TurnEnd(self._reason, TurnUsage())]

    async def aclose(self) -> None:
        pass

    def messages(self) -> tuple[list[Json], list[Json]]:
        return self._after.messages()


def _waits(item: AnyItem) -> bool:
    """Whether the client has to do something before the model can go on."""
    return isinstance(item, McpApprovalRequest) or bool(
        call_id_of(item) and not is_server_run_call(item)
    )
