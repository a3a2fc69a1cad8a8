"""The outputs that the client puts into a response while it runs, and what goes on with them.

An output becomes an item of the response, also of one that is a sub-agent's. What was read is
recorded. So another server repeats the run up to there; it has no connection to the client, so the
response then takes no more outputs and ends as one that was asked for over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from antiphon.application.input.injections import Injections
from antiphon.application.ports import NewId
from antiphon.application.tools.agents.children import POLL_S, Children, SubAgent
from antiphon.application.tools.calls import Recall
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.history import agents as h
from antiphon.domain.history.conversation import Entry, entry
from antiphon.domain.responses.traces import TracedDelta, from_traced, to_traced

INJECT_S = 30.0
"""How long a response waits for outputs that its client may inject, when nothing else goes on."""

Continue = Callable[[str, str, Sequence[Entry]], Awaitable[None]]
"""(an agent's name, the id of its next response, its items) -> nothing, once that has started."""


class ClientOutputs:
    """The outputs that come as `injections`; None if the client cannot send any.

    `conversation` is what came before the response, `output` returns its items so far.
    """

    def __init__(
        self,
        injections: Injections | None,
        children: Children,
        new_id: NewId,
        conversation: Sequence[Entry],
        output: Callable[[], Sequence[i.AnyItem]],
        go_on: Continue,
    ) -> None:
        self._injections = injections
        self._children = children
        self._new_id = new_id
        self._conversation = conversation
        self._output = output
        self._continue = go_on

    @property
    def may_come(self) -> bool:
        """Whether the client may still inject outputs."""
        return self._injections is not None and not self._injections.is_closed

    @property
    def may_go_on(self) -> bool:
        """Whether a call is open that the client may answer, or a sub-agent waits although all of
        its calls are answered: the client may be faster than the end of the agent's response."""
        if self._injections is None:
            return False
        return (self.may_come and bool(h.open_calls(self._output()))) or any(self._answered(()))

    async def read(self, recall: Recall) -> AsyncGenerator[list[d.Delta]]:
        """Yield the outputs that the client injects, and what sub-agents do meanwhile, until no
        call of the client is open. It may take INJECT_S; then the response takes no more."""
        assert self._injections is not None
        end_at = asyncio.get_running_loop().time() + INJECT_S
        while self.may_go_on:
            read_next = partial(self._next, self._injections, end_at)
            traced: Sequence[TracedDelta] = await recall(read_next)
            if not traced:
                self._injections.close()
                return
            yield [*map(from_traced, traced)]

    async def _next(self, injections: Injections, end_at: float) -> list[TracedDelta]:
        """Return what comes next; nothing if the client sends no more."""
        may_resume = True  # what was read last may be the end of a response with answered calls
        while True:
            deltas = [delta for each in injections.take() for delta in self._to_deltas(each)]
            if deltas or may_resume:
                deltas += await self._resume_answered(deltas)
                may_resume = False
            deltas += await self._children.read()
            if deltas:
                return [*map(to_traced, deltas)]
            remaining_s = end_at - asyncio.get_running_loop().time()
            if remaining_s <= 0 or injections.is_closed or not injections.has_client:
                return []
            await injections.wait(min(POLL_S, remaining_s))

    def _to_deltas(self, output: Entry) -> list[d.Delta]:
        """Return the output as an item of the response, under an id of this server's."""
        prefix = i.ID_PREFIXES[type(output.item)]
        item: Any = msgspec.structs.replace(
            output.item,
            id=self._new_id(prefix),
            agent=msgspec.UNSET,
            status="completed",
        )
        events = (e.ItemAdded(output_index=0, item=item), e.ItemDone(output_index=0, item=item))
        return [d.AgentUpdate("", events=tuple(map(msgspec.to_builtins, events))), d.ItemEnd()]

    def _answered(self, injected: Sequence[Entry]) -> Iterator[tuple[SubAgent, list[Entry]]]:
        """Yield those sub-agents that wait of which no call is open any more, and their items."""
        waiting = self._children.waiting
        entries = [*self._conversation, *map(entry, self._output()), *injected] if waiting else ()
        for child in waiting:
            own = [*h.entries_under(entries, child.name)]
            if not h.open_calls([each.item for each in own]):
                yield child, own

    async def _resume_answered(self, deltas: Sequence[d.Delta]) -> list[d.Delta]:
        """Let those sub-agents go on of which no call is open any more."""
        items = [each.events[-1]["item"] for each in deltas if isinstance(each, d.AgentUpdate)]
        injected = [entry(msgspec.convert(item, i.AnyItem)) for item in items]
        resumed: list[d.Delta] = []
        for child, own in [*self._answered(injected)]:
            response_id = self._children.id_going_on(child)
            await self._continue(child.name, response_id, own)
            resumed.append(d.AgentUpdate(response_id))
        return resumed
