"""The calls of tools that this server runs (docs/reference/api.md#hosted-tools).

ToolCaller       runs the calls of one kind of tool
ToolCalls        the callers of a response, and the limit on its calls
ToolCallingTurn  a turn of the model with the calls that it makes: they run side by side after the
                 model has ended its turn, and their items follow in the order of the calls
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import ModelTurn
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.tools.audit import CallRecord, CallRecords
from antiphon.application.tools.budgets import (
    DEFAULT_BUDGETS,
    MAX_FAILURES,
    MAX_PARALLEL_CALLS,
    Budgets,
)
from antiphon.application.tools.citations import CitationSource, Cite
from antiphon.application.tools.work import RunningWork, Work, WorkOutput, to_finished_work
from antiphon.domain import deltas as d

APPROVAL = "mcp_approval"
TOO_MANY_CALLS = "This call was not run: the response has made the max_tool_calls that it may make."
NO_ANSWER = (
    f"This call was not run: the last {MAX_FAILURES} calls got no answer. Trying again in this "
    "response will not help."
)


class ToolCaller(Protocol):
    """Runs the calls of one kind of tool."""

    step: str
    """What the item of a call reports while the call runs (ToolProgress)."""

    def open_item(self, start: d.CallStart) -> d.Delta:
        """Return the delta that opens the item of a call.

        If that is a CallStart, it replaces `start` in the methods below.
        """

    def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
        """Return the output of the call, which runs only while it is iterated over."""

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:
        """Return the output of a call that did not run, or that failed before it had any output."""

    def abort(self, reason: str) -> Sequence[d.Delta]:  # noqa: ARG002
        """Return the end of a call that failed, or was stopped, after it had some output."""
        return [d.ItemEnd()]

    def is_unreachable(self, end: d.ToolEnd) -> bool:  # noqa: ARG002
        """Whether a call ended like this because its server is gone or does not answer.

        A call with wrong arguments is no sign of that.
        """
        return False


class SingleItemCaller(ToolCaller):
    """A caller whose calls are one item each, which includes the result."""

    async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
        yield [await self.run(start, arguments)]

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:  # noqa: ARG002
        return [self.refusal_of(reason)]

    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        """Run the call and return the end of its item."""
        raise NotImplementedError

    def refusal_of(self, reason: str) -> d.ToolEnd:
        """Return the end of the item of a call that did not run."""
        raise NotImplementedError


class ToolCalls:
    """The calls of one response, of every kind: at most `max_calls` of them.

    Every call ends in time, stays within its budgets, and fails without the others. A tool that
    does not answer is not called forever. Every call is recorded in `records`.
    """

    def __init__(
        self,
        callers: Mapping[str, ToolCaller],
        max_calls: int | None,
        budgets: Budgets = DEFAULT_BUDGETS,
        *,
        max_parallel: int = MAX_PARALLEL_CALLS,
        records: CallRecords | None = None,
    ) -> None:
        self._callers = callers
        self._remaining_calls = max_calls
        distinct_callers = {id(caller): caller for caller in callers.values()}.values()
        self.cite_functions: Sequence[Cite] = [
            caller.cite for caller in distinct_callers if isinstance(caller, CitationSource)
        ]
        self._budgets = budgets
        self._records = records or CallRecords(recorder=RunRecorder())
        self._slots = asyncio.Semaphore(max_parallel)
        self._failures_in_a_row: Counter[tuple[str, str | None]] = Counter()

    def open_item(self, delta: d.Delta) -> tuple[d.CallStart, d.Delta] | None:
        """Return the start of a call that runs here, and the delta that opens its item."""
        if not isinstance(delta, d.CallStart) or delta.kind not in self._callers:
            return None
        opening = self._callers[delta.kind].open_item(delta)
        start = opening if isinstance(opening, d.CallStart) else delta
        if self._records.recorder.trace is not None:
            self._records.recorder.trace.open_call(delta, start, opening)
        return start, opening

    def step(self, start: d.CallStart) -> d.ToolProgress:
        return d.ToolProgress(self._callers[start.kind].step)

    def run(self, start: d.CallStart, arguments: str) -> Work:
        """Count the call, now, and return the work that runs it."""
        work = self._work_of(start, arguments)
        trace = self._records.recorder.trace
        if trace is None:
            return work
        return _keep_output(work, trace.run_call(start, arguments, self.step(start).step))

    def _work_of(self, start: d.CallStart, arguments: str) -> Work:
        caller = self._callers[start.kind]
        refuse = partial(caller.refuse, start, arguments)
        if self._remaining_calls is not None:
            self._remaining_calls -= 1
        if self._remaining_calls is not None and self._remaining_calls < 0:
            return self.refuse(start, arguments, refuse(TOO_MANY_CALLS))
        record = self._records.call(start, arguments)
        output = self._call_if_reachable(caller, start, arguments, record)
        return Work(output, refuse, caller.abort, self._slots, record.end)

    def refuse(self, start: d.CallStart, arguments: str, refusal: Sequence[d.Delta]) -> Work:
        """Return the work of a call that does not run."""
        record = self._records.call(start, arguments)
        record.refuse()
        return to_finished_work(refusal, record.end)

    def record_listing(self, label: str, work: Work) -> Work:
        """Return the work of an MCP server's listing, which is recorded."""
        return replace(work, on_end=self._records.listing(label).end)

    def end_output(self) -> None:
        """Record that the model has ended its turn: what follows are its calls."""
        self._records.recorder.end_output()

    def note_approval_request(self, start: d.CallStart, arguments: str) -> None:
        """Record that the client is asked before a call runs."""
        self._records.approval_requested(start, arguments)

    @asynccontextmanager
    async def run_in_parallel(
        self, work_list: Sequence[Work]
    ) -> AsyncGenerator[Sequence[RunningWork]]:
        """Run all of it side by side; leaving the block stops what still runs."""
        running = [RunningWork(work, self._budgets) for work in work_list]
        try:
            yield running
        finally:
            await asyncio.gather(*(work.stop() for work in running))

    async def _call_if_reachable(
        self,
        caller: ToolCaller,
        start: d.CallStart,
        arguments: str,
        record: CallRecord,
    ) -> WorkOutput:
        server = start.kind, start.namespace
        if self._failures_in_a_row[server] >= MAX_FAILURES:
            record.refuse()
            yield caller.refuse(start, arguments, NO_ANSWER)
            return
        is_unreachable = True  # if it raises, or its time is up
        try:
            ends: list[d.ToolEnd] = []
            async with aclosing(caller.call(start, arguments)) as batches:
                async for batch in batches:
                    ends += (delta for delta in batch if isinstance(delta, d.ToolEnd))
                    yield batch
            is_unreachable = any(map(caller.is_unreachable, ends))
        finally:
            failures = self._failures_in_a_row[server] + 1 if is_unreachable else 0
            self._failures_in_a_row[server] = failures


def _keep_output(work: Work, output: list[Sequence[d.Delta]]) -> Work:
    """Return the work with its batches added to `output` as they come."""

    async def tee() -> WorkOutput:
        async with aclosing(work.output) as batches:
            async for batch in batches:
                output.append(batch)
                yield batch

    def refuse(reason: str) -> Sequence[d.Delta]:
        output.append(batch := work.refuse(reason))
        return batch

    def abort(reason: str) -> Sequence[d.Delta]:
        output.append(batch := work.abort(reason))
        return batch

    return replace(work, output=tee(), refuse=refuse, abort=abort)


class ToolCallingTurn(TurnWrapper):
    """A turn of the model with its calls.

    Deltas pass through until the first call is complete. Its item then stays open for the result,
    so the deltas after it wait. A turn that was cut off runs no calls.
    """

    def __init__(self, inner: ModelTurn, calls: ToolCalls) -> None:
        super().__init__(inner)
        self._calls = calls

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        waiting: list[d.Delta] = []
        calls: list[_Call] = []
        open_call: _Call | None = None
        async with aclosing(aiter(self._inner)) as batches:
            async for batch in batches:
                ready: list[d.Delta] = []
                for written in batch:
                    delta = written
                    if isinstance(delta, d.ArgumentsDelta) and open_call is not None:
                        open_call.arguments += delta.text
                    elif open_call is not None:
                        open_call.end_position = len(waiting)
                        if open_call.start.kind == APPROVAL and not _is_cut(delta):
                            self._calls.note_approval_request(open_call.start, open_call.arguments)
                        open_call = None
                    if (opening := self._calls.open_item(delta)) is not None:
                        start, delta = opening
                        open_call = _Call(start)
                        calls.append(open_call)
                    elif isinstance(delta, d.CallStart) and delta.kind == APPROVAL:
                        open_call = _Call(delta)
                    must_wait = calls[:1] and calls[0].end_position is not None
                    (waiting if must_wait else ready).append(delta)
                if ready:
                    yield ready
        if not calls:
            return
        end = waiting[-1] if waiting else None
        if not isinstance(end, d.TurnEnd) or _is_cut(end):
            yield waiting
            return
        self._calls.end_output()
        work_list = [self._calls.run(call.start, call.arguments) for call in calls]
        async with self._calls.run_in_parallel(work_list) as running:
            position = 0
            for call, work in zip(calls, running, strict=True):
                assert call.end_position is not None
                yield [*waiting[position : call.end_position], self._calls.step(call.start)]
                async for output in work:
                    yield [*output]
                position = call.end_position
        yield waiting[position:]


def _is_cut(delta: d.Delta) -> bool:
    """Whether the turn ends here before the model has ended it."""
    return isinstance(delta, d.TurnEnd) and delta.reason != "stop"


class _Call:
    """A call as the model writes it; its result follows `end_position` in the waiting deltas."""

    def __init__(self, start: d.CallStart) -> None:
        self.start = start
        self.arguments = ""
        self.end_position: int | None = None
