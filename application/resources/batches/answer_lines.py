"""Answer the lines of a batch: a few at a time, each until its answer is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial

from antiphon.application.ports import ClaimedBatch, LineResult
from antiphon.application.resources.batches.input_lines import InputLine
from antiphon.application.resources.batches.parts import BatchParts
from antiphon.application.support.bytes_in_work import FREE_BYTES
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.batches.lines import (
    FULL,
    LineAnswer,
    RequestLine,
    answered_line,
    error_line,
    read_line,
)

MAX_REFUSED_S = 60.0
"""The longest wait of a refused request, whatever the refusal says: limits may change."""

AddResults = Callable[[Sequence[LineResult]], Awaitable[None]]
"""Stores results of lines. Raises: LeaseLost; StoreError."""


class _LineSlot:
    """The slot of a line while its request runs.

    A short line gives it back while it waits to be sent again, so that other batches of its tenant
    go on. A long one keeps it, so that few of them are in memory.
    """

    def __init__(self, slots: FairQueue, tenant: str, size: int) -> None:
        self._slots = slots
        self._tenant = tenant
        self._is_held = False
        self.is_kept = size > FREE_BYTES

    async def take(self) -> None:
        if not self._is_held:
            await self._slots.acquire(self._tenant)
            self._is_held = True

    def rest(self) -> None:
        if not self.is_kept:
            self.release()

    def release(self) -> None:
        if self._is_held:
            self._slots.release(self._tenant)
            self._is_held = False


class _AddTogether:
    """Adds results of lines. Those that come while others are written share the next write, as a
    store may take 10 ms for each, one after another.

    If a write fails, all lines of the batch are stopped: none counts as done that was in it.
    """

    def __init__(self, add: AddResults) -> None:
        self._add = add
        self._pending: dict[int, LineResult] = {}
        self._turn = asyncio.Lock()

    async def __call__(self, result: LineResult) -> None:
        """Return when the result is stored. Raises: LeaseLost; StoreError."""
        self._pending[result.line] = result
        async with self._turn:
            if result.line in self._pending:
                results, self._pending = [*self._pending.values()], {}
                await self._add(results)


class AnswerLines:
    """Sends the requests of a claimed batch that have no result yet, and adds their answers.

    Once `is_stopping`, it sends no more, and those that wait to be sent again end without a result.
    """

    def __init__(
        self,
        parts: BatchParts,
        claimed: ClaimedBatch,
        add: AddResults,
        is_stopping: asyncio.Event,
    ) -> None:
        self._parts = parts
        self._claim = claimed.claim
        self._caller = claimed.caller
        self._add_together = _AddTogether(add)
        self._is_stopping = is_stopping
        self._output_bytes = 0

    async def __call__(self, lines: AsyncGenerator[InputLine]) -> None:
        """Send the requests of these lines. Raises: RequestError; LeaseLost; StoreError."""
        progress = await self._parts.batches.get_progress(self._claim)
        self._output_bytes = progress.output_bytes
        places = asyncio.Semaphore(self._parts.limits.lines)
        async with asyncio.TaskGroup() as running, aclosing(lines):
            async for line in lines:
                if line.number in progress.lines:
                    continue
                await places.acquire()
                slot = _LineSlot(self._parts.slots, self._claim.tenant, len(line.text))
                if slot.is_kept:
                    await slot.take()
                if self._is_stopping.is_set():
                    slot.release()
                    break
                task = running.create_task(self._answer(line.number, line.text, slot))
                task.add_done_callback(partial(_free, slot, places))

    async def _answer(self, number: int, text: bytes, slot: _LineSlot) -> None:
        request = await run_in_thread(len(text), read_line, text)
        del text
        answer = await self._send(request, slot)
        if answer is None:
            return
        body = answered_line(self._parts.new_id("batch_req"), request.custom_id, answer)
        is_failure = answer.is_failure
        if not is_failure:
            if self._output_bytes + len(body) > self._parts.limits.file_bytes:
                body, is_failure = self._too_large(request.custom_id), True
            else:
                self._output_bytes += len(body)
        await self._add_together(LineResult(line=number, is_failure=is_failure, body=body))

    def _too_large(self, custom_id: str) -> bytes:
        return error_line(
            self._parts.new_id("batch_req"),
            custom_id,
            FULL,
            f"The output file may have {self._parts.limits.file_bytes} bytes, and the answer does "
            "not fit.",
        )

    async def _send(self, request: RequestLine, slot: _LineSlot) -> LineAnswer | None:
        """Return the answer to a request, or None if the batch stops before it is accepted."""
        while True:
            await slot.take()
            if self._is_stopping.is_set():
                return None
            answer = await self._parts.answer(self._caller, request.url, bytes(request.body))
            if answer.retry_after_s is None:
                return answer
            slot.rest()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(answer.retry_after_s, MAX_REFUSED_S)):
                    await self._is_stopping.wait()


def _free(slot: _LineSlot, places: asyncio.Semaphore, _task: object) -> None:
    """Free what a line had. Its task may have been cancelled before its first step."""
    slot.release()
    places.release()
