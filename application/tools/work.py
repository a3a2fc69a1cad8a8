"""A tool call or listing of one response, kept within its budgets whatever the tool does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext

import msgspec
from msgspec import Struct

from antiphon.application.support.bytes_in_work import draw_on
from antiphon.application.tools.budgets import Budgets
from antiphon.application.tools.outputs import ResponseOutputs
from antiphon.domain import deltas as d
from antiphon.domain.responses.metrics import CallResult

logger = logging.getLogger("antiphon.tools")

INTERNAL_ERROR = "This call failed because of an internal error."

WorkOutput = AsyncGenerator[Sequence[d.Delta]]
"""The deltas of a call, in batches: the first ones end the item of the call, and items of its own
may follow."""


CheckOutput = Callable[[Sequence[Sequence[d.Delta]]], Awaitable[Sequence[Sequence[d.Delta]]]]


class WorkReport(Struct, frozen=True, kw_only=True):
    """How work ended, what it took, and how many bytes of JSON it returned."""

    result: CallResult
    seconds: float
    output_bytes: int


class Work(Struct, frozen=True):
    """A call or a listing that can run, once it has its `slot`.

    If it fails, `refuse` returns the deltas to send instead of its output, or `abort` the ones to
    send after it. Both take the reason. `on_end` is called once, however it ends. `is_known`: the
    output was returned on another server already, so it is not refused here. `guard`, if set,
    gets the whole output before anybody sees it, and returns what may be seen.
    """

    output: WorkOutput
    refuse: Callable[[str], Sequence[d.Delta]]
    abort: Callable[[str], Sequence[d.Delta]] = lambda _: [d.ItemEnd()]
    slot: AbstractAsyncContextManager[object] = nullcontext()
    on_end: Callable[[WorkReport], None] | None = None
    is_known: bool = False
    guard: CheckOutput | None = None


def to_finished_work(
    batch: Sequence[d.Delta], on_end: Callable[[WorkReport], None] | None = None
) -> Work:
    """Return work whose whole output is known already."""
    return Work(_iterate_once(batch), lambda _: batch, on_end=on_end)


async def _iterate_once(batch: Sequence[d.Delta]) -> WorkOutput:
    yield batch


def _has_failed(delta: d.Delta) -> bool:
    return isinstance(delta, d.ToolEnd) and delta.status != "completed"


class RunningWork:
    """Work that runs within its budgets; its output is queued until somebody iterates over it."""

    def __init__(self, work: Work, budgets: Budgets, outputs: ResponseOutputs) -> None:
        self._work = work
        self._budgets = budgets
        self._outputs = outputs
        self._call_output = outputs.open_call()
        self._batches: asyncio.Queue[Sequence[d.Delta] | None] = asyncio.Queue()
        self._has_output = False
        self._output_bytes = 0
        self._has_failed = False
        self._is_refused = False
        self._task = asyncio.create_task(self._run())

    async def __aiter__(self) -> WorkOutput:
        while (batch := await self._batches.get()) is not None:
            yield batch

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        result: CallResult = "canceled"
        clock = asyncio.get_running_loop().time
        started_at = clock()
        try:
            async with self._work.slot, self._outputs.slot():
                started_at = clock()
                failure = await self._run_in_time()
            result = "ok" if failure is None and not self._has_failed else "error"
            result = "refused" if self._is_refused else result
            if failure is not None:
                end = self._work.abort if self._has_output else self._work.refuse
                self._batches.put_nowait(end(failure))
        finally:
            self._call_output.end()
            if self._work.on_end is not None:
                report = WorkReport(
                    result=result, seconds=clock() - started_at, output_bytes=self._output_bytes
                )
                self._work.on_end(report)
            self._batches.put_nowait(None)

    async def _run_in_time(self) -> str | None:
        """Run the work in a task of its own, since it might ignore its cancellation.

        Return the reason if it failed.
        """
        task = asyncio.create_task(self._queue_output())
        try:
            in_time, _ = await asyncio.wait({task}, timeout=self._budgets.call_s)
        finally:
            task.cancel()
            _, stuck = await asyncio.wait({task}, timeout=self._budgets.stopping_s)
            if stuck:
                logger.error("a tool call could not be stopped: %r", task)
        if not in_time:
            return f"This call was stopped: it took more than {self._budgets.call_s:g} seconds."
        if task.cancelled():
            logger.error("a tool call failed: it cancelled itself")
            return INTERNAL_ERROR
        return task.result()

    async def _queue_output(self) -> str | None:
        max_bytes = self._budgets.call_bytes
        if not self._work.is_known and self._outputs.refusal is not None:
            self._is_refused = True
            return self._outputs.refusal
        draw_on(self._call_output.read)
        held: list[Sequence[d.Delta]] = []
        try:
            async with aclosing(self._work.output) as batches:
                async for batch in batches:
                    encoded = msgspec.json.encode(batch)
                    self._output_bytes += len(encoded)
                    if self._output_bytes > max_bytes:
                        return f"This call returned more than {max_bytes} bytes."
                    if not self._work.is_known:
                        refusal = await self._call_output.keep(encoded)
                        if refusal is not None:
                            return refusal
                    if self._work.guard is None:
                        self._put(batch)
                    else:
                        held.append(batch)
            if self._work.guard is not None:
                for batch in await self._work.guard(held):
                    self._put(batch)
        except (Exception, SystemExit):  # whatever a tool raises: no tool ends the server
            logger.exception("a tool call failed")
            return INTERNAL_ERROR
        return None

    def _put(self, batch: Sequence[d.Delta]) -> None:
        self._has_output = True
        self._has_failed |= any(map(_has_failed, batch))
        self._batches.put_nowait(batch)
