"""Tools that this server runs, called for one response (docs/reference/api.md#hosted-tools).

Caller        runs the calls of one kind of tool
Calls         the callers of a response, and how many calls there may be
ToolCallingTurn   a turn of the model with the calls that it makes: they run side by side when the
              model has ended its turn, and their items come one after another, in its order
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Protocol

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import ModelTurn
from antiphon.application.tools.budgets import (
    DEFAULT_BUDGETS,
    MAX_FAILURES,
    MAX_PARALLEL_CALLS,
    Budgets,
)
from antiphon.application.tools.citations import CitationSource, Cite
from antiphon.application.tools.work import Given, RunningWork, Work, has_ended
from antiphon.domain import deltas as d

TOO_MANY_CALLS = "This call was not run: the response has made the max_tool_calls that it may make."
GONE = (
    f"This call was not run: {MAX_FAILURES} calls in a row found nobody who answers. It is of no "
    "use to try again in this response."
)


class ToolCaller(Protocol):
    """Runs the calls of one kind of tool."""

    step: str
    """What the item of a call is doing while it runs (ToolProgress)."""

    def open_item(self, start: d.CallStart) -> d.Delta:
        """Return the delta that opens the item of a call; a CallStart is the start from then on."""

    def call(self, start: d.CallStart, arguments: str) -> Given:
        """Return what runs the call; nothing runs before it is read."""

    def refused(self, start: d.CallStart, arguments: str, why: str) -> Sequence[d.Delta]:
        """Return what a call gives that is not run, or that broke before it gave anything."""

    def cut(self, why: str) -> Sequence[d.Delta]:  # noqa: ARG002
        """Return what ends a call that broke, or was stopped, after it gave something."""
        return [d.ItemEnd()]

    def is_unreachable(self, end: d.ToolEnd) -> bool:  # noqa: ARG002
        """Whether a call ended like this because what runs it is not there, or does not answer;
        not because of what it was asked."""
        return False


class SingleItemCaller(ToolCaller):
    """A caller whose calls are one item each, which has the result too."""

    async def call(self, start: d.CallStart, arguments: str) -> Given:
        yield [await self.end(start, arguments)]

    def refused(self, start: d.CallStart, arguments: str, why: str) -> Sequence[d.Delta]:  # noqa: ARG002
        return [self.refusal(why)]

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        """Run the call and return the end of its item."""
        raise NotImplementedError

    def refusal(self, why: str) -> d.ToolEnd:
        """Return the end of the item of a call that is not run."""
        raise NotImplementedError


class ToolCalls:
    """The calls of one response, of every kind, of which there may be `most`.

    Whatever runs a call: it ends in time, gives no more than it may, and fails alone. Who does not
    answer is not asked for ever.
    """

    def __init__(
        self,
        callers: Mapping[str, ToolCaller],
        most: int | None,
        budgets: Budgets = DEFAULT_BUDGETS,
        *,
        at_once: int = MAX_PARALLEL_CALLS,
    ) -> None:
        self._callers = callers
        self._left = most
        each_once = {id(caller): caller for caller in callers.values()}.values()
        self.cites: Sequence[Cite] = [
            caller.cite for caller in each_once if isinstance(caller, CitationSource)
        ]
        self._budgets = budgets
        self._places = asyncio.Semaphore(at_once)
        self._found_nobody: Counter[tuple[str, str | None]] = Counter()

    def open_item(self, delta: d.Delta) -> tuple[d.CallStart, d.Delta] | None:
        """Return the start of a call that is run here, and what opens its item."""
        if not isinstance(delta, d.CallStart) or delta.kind not in self._callers:
            return None
        opens = self._callers[delta.kind].open_item(delta)
        return (opens if isinstance(opens, d.CallStart) else delta), opens

    def step(self, start: d.CallStart) -> d.ToolProgress:
        return d.ToolProgress(self._callers[start.kind].step)

    def run(self, start: d.CallStart, arguments: str) -> Work:
        """Count the call, now, and return what runs it."""
        caller = self._callers[start.kind]
        refused = partial(caller.refused, start, arguments)
        if self._left is not None:
            self._left -= 1
        if self._left is not None and self._left < 0:
            return has_ended(refused(TOO_MANY_CALLS))
        return Work(self._tried(caller, start, arguments), refused, caller.cut, self._places)

    @asynccontextmanager
    async def begun(self, work: Sequence[Work]) -> AsyncGenerator[Sequence[RunningWork]]:
        """Run all of it side by side; whoever leaves early stops it."""
        running = [RunningWork(each, self._budgets) for each in work]
        try:
            yield running
        finally:
            await asyncio.gather(*(each.stop() for each in running))

    async def _tried(self, caller: ToolCaller, start: d.CallStart, arguments: str) -> Given:
        of = start.kind, start.namespace
        if self._found_nobody[of] >= MAX_FAILURES:
            yield caller.refused(start, arguments, GONE)
            return
        is_unreachable = True  # where it raises, or its time is up
        try:
            ends: list[d.ToolEnd] = []
            async with aclosing(caller.call(start, arguments)) as given:
                async for batch in given:
                    ends += (each for each in batch if isinstance(each, d.ToolEnd))
                    yield batch
            is_unreachable = any(map(caller.is_unreachable, ends))
        finally:
            self._found_nobody[of] = self._found_nobody[of] + 1 if is_unreachable else 0


class ToolCallingTurn(TurnWrapper):
    """What the model writes is passed on while it comes, until its first call is whole: the item
    stays open for the result, so what follows it waits. A turn that was cut runs nothing.
    """

    def __init__(self, inner: ModelTurn, calls: ToolCalls) -> None:
        super().__init__(inner)
        self._calls = calls

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        held: list[d.Delta] = []
        calls: list[_Call] = []
        open_call: _Call | None = None
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                passed: list[d.Delta] = []
                for written in deltas:
                    delta = written
                    if isinstance(delta, d.ArgumentsDelta) and open_call is not None:
                        open_call.arguments += delta.text
                    elif open_call is not None:
                        open_call.ends_at = len(held)
                        open_call = None
                    if (opening := self._calls.open_item(delta)) is not None:
                        start, delta = opening
                        open_call = _Call(start)
                        calls.append(open_call)
                    waits = calls[:1] and calls[0].ends_at is not None
                    (held if waits else passed).append(delta)
                if passed:
                    yield passed
        if not calls:
            return
        end = held[-1] if held else None
        if not isinstance(end, d.TurnEnd) or end.reason != "stop":
            yield held
            return
        work = [self._calls.run(call.start, call.arguments) for call in calls]
        async with self._calls.begun(work) as running:
            position = 0
            for call, each in zip(calls, running, strict=True):
                assert call.ends_at is not None
                yield [*held[position : call.ends_at], self._calls.step(call.start)]
                async for given in each:
                    yield [*given]
                position = call.ends_at
        yield held[position:]


class _Call:
    """A call as it is read; `ends_at` is where its result belongs among what was held back."""

    def __init__(self, start: d.CallStart) -> None:
        self.start = start
        self.arguments = ""
        self.ends_at: int | None = None
