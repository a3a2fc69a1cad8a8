"""The loop over turns: which turns of the model make a response, one after another.

A turn is anything that yields deltas (ports.ModelTurn): an answer, a compaction before it. The run
reads them alike. So what needs the model once more is one more turn in `Turns.each`, and neither
the run nor the sequencer knows of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.compacting import CompactingTurn, compaction_of
from antiphon.application.ports import Model, ModelTurn, Turn
from antiphon.application.searching import MOST_SEARCHES, SearchTurn, searches_in
from antiphon.application.show_items import ShowItems
from antiphon.application.summaries import SummarisedTurn
from antiphon.application.warm_up import WarmUp, shortest
from antiphon.domain.items import AnyItem, asks
from antiphon.domain.offers import Offer, loaded
from antiphon.domain.tool_search import search

Seal = Callable[[str, str], str]
"""(tenant, text) -> an opaque, authenticated string."""


class Plan(Struct, frozen=True, kw_only=True):
    """What the turns of one response are made from.

    `compacts`: the conversation is compacted first; `answers`: then, or at once, it is answered.
    `warms_up`: nothing is answered, only the prompt is cached.
    `summary`: how long summaries of reasoning are to be; None for none.
    """

    tenant: str
    model: Model
    offered: Offer
    turn: Turn
    compacts: bool = False
    answers: bool = True
    warms_up: bool = False
    summary: str | None = None


class Turns:
    """The turns of one response. `begin` admits the first; only then may `each` be read, once."""

    _first: ModelTurn

    def __init__(self, plan: Plan, show_items: ShowItems, seal: Seal, *, response_id: str) -> None:
        self._plan = plan
        self._show_items = show_items
        self._seal = seal
        self._response_id = response_id
        self._admitted = 0

    async def begin(self) -> None:
        """Admit the first turn. Raises: RequestError, TooManyRequests, EngineDead."""
        turn = self._plan.turn
        self._first = await (self._compact(turn) if self._plan.compacts else self._answer(turn))

    async def aclose(self) -> None:
        """Abort the first turn, where `each` is not going to be read."""
        await self._first.aclose()

    async def each(self, output: Sequence[AnyItem]) -> AsyncGenerator[ModelTurn]:
        """Yield the turns; `output` grows meanwhile: it has the items of those that are over."""
        plan, turn, seen, latest = self._plan, self._plan.turn, 0, self._first
        yield latest
        if plan.compacts:
            if not plan.answers:
                return
            shown = await self._show_items(output, tenant=plan.tenant, model=plan.model)
            turn = replace(turn, items=shown.items)
            seen, latest = len(output), await self._answer(turn)
            yield latest
        async for further in self._searches(turn, latest, output, seen):
            yield further

    async def _searches(
        self, turn: Turn, latest: ModelTurn, output: Sequence[AnyItem], seen: int
    ) -> AsyncGenerator[ModelTurn]:
        """Yield what the latest turn's searches (in `output`, from `seen` on) have found, then the
        next turn, which may search too.
        """
        offered = self._plan.offered
        for _ in range(MOST_SEARCHES):
            searches = searches_in(output[seen:])
            if not searches:
                return
            tools = [each.tool for each in offered.definitions]
            found = [search(each.arguments, tools) for each in searches]
            yield SearchTurn(found, after=latest)
            if any(asks(item) for item in output[seen:]):
                return  # the client has calls to answer first
            offered = loaded(offered, [tool for each in found for tool in each])
            turn = replace(
                turn,
                items=[*turn.items, *output[seen:]],
                tools=offered.specs,
                choice=offered.choice,
            )
            seen, latest = len(output), await self._answer(turn)
            yield latest

    async def _compact(self, turn: Turn) -> ModelTurn:
        admitted = await self._admit(compaction_of(turn))
        return CompactingTurn(admitted, turn.items, partial(self._seal, self._plan.tenant))

    async def _answer(self, turn: Turn) -> ModelTurn:
        if self._plan.warms_up:
            return WarmUp(await self._admit(shortest(turn)))
        admitted = await self._admit(turn)
        if self._plan.summary is None:
            return admitted
        silent = "none" if "none" in self._plan.model.efforts else None
        return SummarisedTurn(admitted, turn, self._admit, length=self._plan.summary, effort=silent)

    async def _admit(self, turn: Turn) -> ModelTurn:
        request_id = f"{self._response_id}_{self._admitted}"
        self._admitted += 1
        return await self._plan.model.begin(turn, request_id=request_id)
