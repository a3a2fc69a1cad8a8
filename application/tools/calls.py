"""The calls of tools that this server runs (docs/reference/api.md#hosted-tools).

ToolCaller       runs the calls of one kind of tool
ToolCalls        the callers of a response, and the limit on its calls
ToolCallingTurn  a turn of the model with the calls that it makes: they run side by side after the
                 model has ended its turn, and their items follow in the order of the calls
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from antiphon.application.model.guards.ask_guards import ResponseGuards
from antiphon.application.model.guards.check_result import check_result
from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import ModelTurn
from antiphon.application.progress.run_progress import CallProgress
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.tools.audit import CallRecord, CallRecords
from antiphon.application.tools.budgets import (
    DEFAULT_BUDGETS,
    MAX_PARALLEL_CALLS,
    Budgets,
)
from antiphon.application.tools.circuit_breaker import MAX_FAILURES, CircuitBreakers
from antiphon.application.tools.citations import CitationSource, Cite
from antiphon.application.tools.outputs import ResponseOutputs
from antiphon.application.tools.work import (
    RunningWork,
    Work,
    WorkOutput,
    WorkReport,
    to_finished_work,
)
from antiphon.domain import deltas as d
from antiphon.domain.errors import GuardFailed
from antiphon.domain.responses.guards import Refuse
from antiphon.domain.responses.metrics import ProgramMetrics
from antiphon.domain.responses.traces import TracedDelta, from_traced, to_traced

Recall = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Returns the JSON value that a function returns, or has returned on an earlier server."""

APPROVAL = "mcp_approval"
TOO_MANY_CALLS = "This call was not run: the response has made the max_tool_calls that it may make."
NO_ANSWER = (
    f"This call was not run: the last {MAX_FAILURES} calls of this tool's server got no "
    "answer. It is left alone for a while."
)

LOST = (
    "The server that ran this call was stopped before the result arrived. Whether the call took "
    "effect is unknown; it was not repeated."
)


class ToolCaller(Protocol):
    """Runs the calls of one kind of tool."""

    step: str
    """What the item of a call reports while the call runs (ToolProgress)."""

    note: str = ""
    """What the model is told of this response's calls, after the tool's description."""

    @property
    def needs_this_server(self) -> bool:
        """Whether calls use what this server alone has, so that no other one may start the run."""
        return False

    @abstractmethod
    def open_item(self, start: d.CallStart) -> d.Delta:
        """Return the delta that opens the item of a call.

        If that is a CallStart, it replaces `start` in the methods below.
        """

    @abstractmethod
    def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
        """Return the output of the call, which runs only while it is iterated over."""

    @abstractmethod
    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:
        """Return the output of a call that did not run, or that failed before it had any output."""

    def abort(self, reason: str) -> Sequence[d.Delta]:  # noqa: ARG002
        """Return the end of a call that failed, or was stopped, after it had some output."""
        return [d.ItemEnd()]

    def start(self, start: d.CallStart) -> Sequence[d.Delta]:
        """Return what the item of a call reports when the call starts: at least one event.

        An item of this server's own is complete then: its output is another item.
        """
        progress = d.ToolProgress(self.step)
        return [progress, d.ItemEnd()] if isinstance(start, d.HostedCallStart) else [progress]

    def reopen_item(self, start: d.CallStart, opening: d.Delta) -> d.Delta:  # noqa: ARG002
        """Return what `open_item` would: another server has opened the item with `opening`."""
        return self.open_item(start)

    def restore(self, start: d.CallStart, arguments: str, output: Sequence[d.Delta]) -> None:  # noqa: ARG002
        """Note the next output of a call that ran on another server; the call is not made here."""
        return

    async def may_repeat(self, start: d.CallStart, arguments: str) -> bool:  # noqa: ARG002
        """Whether a call that another server may have made can be made again without harm."""
        return False

    @property
    def goes_on(self) -> bool:
        """Whether a call goes on after the output that another server has had of it."""
        return False

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

    @abstractmethod
    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        """Run the call and return the end of its item."""

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
        outputs: ResponseOutputs | None = None,
        guards: ResponseGuards | None = None,
    ) -> None:
        self._guards = guards
        self._callers = callers
        self._remaining_calls = max_calls
        distinct_callers = {id(caller): caller for caller in callers.values()}.values()
        self.cite_functions: Sequence[Cite] = [
            caller.cite for caller in distinct_callers if isinstance(caller, CitationSource)
        ]
        self._budgets = budgets
        self._outputs = outputs or ResponseOutputs(budgets.response_bytes)
        self._records = records or CallRecords(recorder=RunRecorder())
        self._slots = asyncio.Semaphore(max_parallel)
        self._circuit_breakers = CircuitBreakers()

    async def check(self, start: d.CallStart, arguments: str) -> str | Refuse:
        """Return the arguments of a call that the model did not just write, as they may pass.

        Raises: GuardFailed.
        """
        if self._guards is None:
            return arguments
        answer = await self._guards.ask(arguments, "tool_call", tool=start.name)
        return answer if isinstance(answer, str) else self._guards.refusal_of(answer)

    async def check_output(self, tool: str, text: str) -> str | Refuse:
        """Return what a tool of this server's has made of results, as it may pass."""
        if self._guards is None:
            return text
        try:
            answer = await self._guards.ask(text, "tool_result", tool=tool)
        except GuardFailed as failure:
            return Refuse(failure.message)
        return answer if isinstance(answer, str) else self._guards.refusal_of(answer)

    def runs(self, call: d.CallStart) -> bool:
        """Whether a call runs here."""
        return call.kind in self._callers

    def open_item(self, delta: d.Delta) -> tuple[d.CallStart, d.Delta] | None:
        """Return the start of a call that runs here, and the delta that opens its item."""
        if not isinstance(delta, d.CallStart) or not self.runs(delta):
            return None
        opening = self._open(self._callers[delta.kind], delta)
        start = opening if isinstance(opening, d.CallStart) else delta
        if self._records.recorder.trace is not None:
            self._records.recorder.trace.open_call(delta, start, opening)
        return start, opening

    def start(self, start: d.CallStart) -> Sequence[d.Delta]:
        """Return what the item of a call reports when the call starts."""
        return self._callers[start.kind].start(start)

    def run(self, start: d.CallStart, arguments: str, refusal: str | None = None) -> Work:
        """Count the call, now, and return the work that runs it, or that refuses it."""
        work = self._work_of(start, arguments, refusal)
        trace = self._records.recorder.trace
        if trace is None:
            return work
        step = self._callers[start.kind].step
        add = trace.run_call(start, arguments, step).append
        return _tee_output(work, add) if work.guard is None else _tee_guarded(work, add)

    def _work_of(self, start: d.CallStart, arguments: str, refusal: str | None) -> Work:
        caller = self._callers[start.kind]
        refuse = partial(caller.refuse, start, arguments)
        if self._remaining_calls is not None:
            self._remaining_calls -= 1
        if self._remaining_calls is not None and self._remaining_calls < 0:
            return self.refuse(start, arguments, refuse(TOO_MANY_CALLS))
        if refusal is not None:
            return self.refuse(start, arguments, refuse(refusal))
        call = self._open_progress()
        is_known = call is not None and call.has_ended
        record = self._records.call(start, arguments, is_known=is_known)
        output = self._call_if_reachable(caller, start, arguments, record, call)
        work = Work(output, refuse, caller.abort, self._slots, record.end, is_known)
        if self._guards is not None and self._guards.ask_at("tool_result"):
            work = replace(work, guard=partial(check_result, self._guards, start, refuse))
        return work if call is None else _record_progress(work, call)

    def _open(self, caller: ToolCaller, delta: d.CallStart) -> d.Delta:
        progress = self._records.recorder.progress
        if progress is None:
            return caller.open_item(delta)
        opened: list[d.Delta] = []

        def make() -> TracedDelta:
            opened.append(caller.open_item(delta))
            return to_traced(opened[0])

        known = progress.recall_or_make(make)
        return opened[0] if opened else caller.reopen_item(delta, from_traced(known))

    def _open_progress(self) -> CallProgress | None:
        progress = self._records.recorder.progress
        return None if progress is None else progress.open_call()

    def refuse(self, start: d.CallStart, arguments: str, refusal: Sequence[d.Delta]) -> Work:
        """Return the work of a call that does not run."""
        record = self._records.call(start, arguments)
        record.refuse()
        return to_finished_work(refusal, record.end)

    def record_listing(self, label: str, work: Work) -> Work:
        """Return the work of an MCP server's listing, which is recorded."""
        recorded = replace(work, on_end=self._records.listing(label).end)
        if (call := self._open_progress()) is None:
            return recorded
        if call.has_ended:
            recorded = replace(recorded, output=_iterate(call.batches), is_known=True)
        return _record_progress(recorded, call)

    async def recall(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return a JSON value that `read` returns, or has returned on an earlier server."""
        progress = self._records.recorder.progress
        return await (read() if progress is None else progress.recall_or_read(read))

    def end_output(self) -> None:
        """Record that the model has ended its turn: what follows are its calls."""
        self._records.recorder.end_output()

    def note_approval_request(self, start: d.CallStart, arguments: str) -> None:
        """Record that the client is asked before a call runs."""
        self._records.approval_requested(start, arguments)

    def note_program(self, program: ProgramMetrics) -> None:
        """Record that a program has ended, which has made some of the calls."""
        self._records.recorder.note_program(program)

    @asynccontextmanager
    async def run_in_parallel(
        self, work_list: Sequence[Work]
    ) -> AsyncGenerator[Sequence[RunningWork]]:
        """Run all of it side by side; leaving the block stops what still runs."""
        running = [RunningWork(work, self._budgets, self._outputs) for work in work_list]
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
        call: CallProgress | None,
    ) -> WorkOutput:
        server = start.kind, start.namespace
        is_new = call is None or call.is_new
        if is_new and not self._circuit_breakers.lets_pass(server):
            record.refuse()
            yield caller.refuse(start, arguments, NO_ANSWER)
            return
        is_unreachable = True  # if it raises, or its time is up
        try:
            ends: list[d.ToolEnd] = []
            async with aclosing(_output_of(caller, start, arguments, call)) as batches:
                async for batch in batches:
                    ends += (delta for delta in batch if isinstance(delta, d.ToolEnd))
                    yield batch
            is_unreachable = any(map(caller.is_unreachable, ends))
        finally:
            self._circuit_breakers.record(server, is_unreachable=is_unreachable)


async def _output_of(
    caller: ToolCaller, start: d.CallStart, arguments: str, call: CallProgress | None
) -> WorkOutput:
    """Yield the output of a call, which another server may have made already.

    What is known of it comes first. A call that may have run is repeated only if that is harmless.
    """
    if call is not None and not call.is_new:
        for known in call.batches:
            caller.restore(start, arguments, known)
            yield known
        if call.has_ended:
            return
        if call.batches and not caller.goes_on:
            yield caller.abort(LOST)
            return
        if not call.batches and not await caller.may_repeat(start, arguments):
            yield caller.refuse(start, arguments, LOST)
            return
    async with aclosing(caller.call(start, arguments)) as batches:
        async for batch in batches:
            yield batch


async def _iterate(batches: Sequence[Sequence[d.Delta]]) -> WorkOutput:
    for batch in batches:
        yield batch


def _record_progress(work: Work, call: CallProgress) -> Work:
    """Return the work with its output and its end recorded, for another server."""

    def end(report: WorkReport) -> None:
        if report.result != "canceled":
            call.end()
        if work.on_end is not None:
            work.on_end(report)

    return replace(_tee_output(work, call.add), on_end=end)


def _tee_output(work: Work, add: Callable[[Sequence[d.Delta]], object]) -> Work:
    """Return the work with `add` called for each of its batches as they come."""

    async def tee() -> WorkOutput:
        async with aclosing(work.output) as batches:
            async for batch in batches:
                add(batch)
                yield batch

    def refuse(reason: str) -> Sequence[d.Delta]:
        batch = work.refuse(reason)
        add(batch)
        return batch

    def abort(reason: str) -> Sequence[d.Delta]:
        batch = work.abort(reason)
        add(batch)
        return batch

    return replace(work, output=tee(), refuse=refuse, abort=abort)


def _tee_guarded(work: Work, add: Callable[[Sequence[d.Delta]], object]) -> Work:
    """Return the work with `add` called for each batch that guards have passed."""
    teed, check = _tee_output(work, add), work.guard
    assert check is not None

    async def guard(batches: Sequence[Sequence[d.Delta]]) -> Sequence[Sequence[d.Delta]]:
        passed = await check(batches)
        for batch in passed:
            add(batch)
        return passed

    return replace(teed, output=work.output, guard=guard)


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
                        start, opened = opening
                        refusal = delta.refusal if isinstance(delta, d.CallStart) else None
                        open_call, delta = _Call(start, refusal), opened
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
        work_list = [self._calls.run(call.start, call.arguments, call.refusal) for call in calls]
        starts = [*self._starts_of(calls, waiting)]
        # Its events are stored before any call runs, and that the calls start with them.
        yield starts[0]
        async with self._calls.run_in_parallel(work_list) as running:
            for number, work in enumerate(running):
                if number:
                    yield starts[number]
                async for output in work:
                    yield [*output]
        yield waiting[calls[-1].end_position :]

    def _starts_of(
        self, calls: Sequence[_Call], waiting: Sequence[d.Delta]
    ) -> Iterator[list[d.Delta]]:
        """Yield what comes before the result of each call."""
        position = 0
        for call in calls:
            assert call.end_position is not None
            yield [*waiting[position : call.end_position], *self._calls.start(call.start)]
            position = call.end_position


def _is_cut(delta: d.Delta) -> bool:
    """Whether the turn ends here before the model has ended it."""
    return isinstance(delta, d.TurnEnd) and delta.reason != "stop"


class _Call:
    """A call as the model writes it; its result follows `end_position` in the waiting deltas."""

    def __init__(self, start: d.CallStart, refusal: str | None = None) -> None:
        self.start = start
        self.refusal = refusal
        self.arguments = ""
        self.end_position: int | None = None
