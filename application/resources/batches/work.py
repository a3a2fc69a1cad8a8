"""Work on one batch under a claim: check its lines, answer them, write its files.

Each step is written to the store before the next begins, and each answer before its line counts as
done. So another server can go on at any point: only lines that were running are sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import (
    AnswerRequest,
    Batches,
    BatchProgress,
    ChangeBatch,
    ClaimedBatch,
    Clock,
    FileStore,
    LineResult,
    NewId,
)
from antiphon.application.resources.batches.input_lines import InputLine, read_lines
from antiphon.application.resources.batches.output_files import WriteFile
from antiphon.application.support.bytes_in_work import FREE_BYTES
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.retry import retry
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.batches.batch import (
    WINDOW_S,
    Batch,
    BatchError,
    BatchErrors,
    Step,
    advance,
    may,
)
from antiphon.domain.batches.lines import (
    EXPIRED,
    FULL,
    CheckLines,
    LineAnswer,
    RequestLine,
    answered_line,
    error_line,
    read_line,
)
from antiphon.domain.errors import BodyTooLarge, LeaseLost, NotFound, RequestError, StoreError

logger = logging.getLogger("antiphon.batches")

MAX_EXTEND_EVERY_S = 2.0
"""Seconds between two extensions of a claim, which also find out that a batch was cancelled."""

EXTENSIONS = 4
"""Of a claim, before it would end."""

STORE_RETRY_S = 10.0
"""How long an answer waits for a store that fails. After that, its request is sent again later."""

FULL_RETRY_S = 30.0
"""Seconds before another attempt to write files for which there was no room."""

MAX_REFUSED_S = 60.0
"""The longest wait of a refused request, whatever the refusal says: limits may change."""

EXPIRED_PORTION = 500
"""Expired lines that are written in one transaction."""

FILE_NOT_FOUND = BatchError(
    code="input_file_not_found",
    message="The input file was deleted before all of its requests were sent.",
    param="input_file_id",
)


class WorkLimits(Struct, frozen=True, kw_only=True):
    """`line_bytes` limits a line of the input, `file_bytes` the output file.

    `lines` of a batch are in work at a time, those that wait to be sent again included. `claim_s`:
    the seconds after which another server goes on with the batch of one that was killed.
    """

    line_bytes: int
    file_bytes: int
    lines: int = 16
    claim_s: float = 20.0

    @property
    def extend_every_s(self) -> float:
        return min(MAX_EXTEND_EVERY_S, self.claim_s / EXTENSIONS)


class BatchParts(Struct, frozen=True, kw_only=True):
    """The parts that all batches of a server share; `slots` are those of the lines that run."""

    batches: Batches
    files: FileStore
    answer: AnswerRequest
    write_file: WriteFile
    slots: FairQueue
    limits: WorkLimits
    new_id: NewId
    now: Clock


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

    def __init__(self, add: Callable[[Sequence[LineResult]], Awaitable[None]]) -> None:
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


class WorkOnBatch:
    """One batch, as long as this server has it."""

    def __init__(self, parts: BatchParts, claimed: ClaimedBatch) -> None:
        self._parts = parts
        self._claim = claimed.claim
        self._caller = claimed.caller
        self._batch = claimed.batch
        self._output_bytes = 0
        self._add_together = _AddTogether(self._add)
        self._news = asyncio.Event()
        self._is_stopping = asyncio.Event()

    def wake(self) -> None:
        """Look at once whether the batch was cancelled."""
        self._news.set()

    async def __call__(self) -> None:
        """Work until the batch has ended, or belongs to another server. Raises: StoreError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch())
                await self._proceed()
                watching.cancel()
        except* LeaseLost:
            logger.info("batch %s: another server goes on with it", self._claim.batch_id)

    # --- the batch --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Keep the claim, and notice that the batch is to stop."""
        limits = self._parts.limits
        while True:
            with suppress(StoreError):  # what is to be written waits for the store, or fails
                batch = await self._parts.batches.extend_claim(self._claim, limits.claim_s)
                if batch is None:
                    raise LeaseLost
                if batch.status == "cancelling":
                    self._is_stopping.set()
            if self._has_expired:
                self._is_stopping.set()
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.extend_every_s):
                    await self._news.wait()

    @property
    def _has_expired(self) -> bool:
        return self._parts.now() >= self._batch.expires_at

    async def _proceed(self) -> None:
        if self._batch.status == "validating":
            await self._validate()
        if self._batch.status == "in_progress":
            await self._run_lines()
        if not self._batch.has_ended:
            await self._finish()

    async def _validate(self) -> None:
        check = CheckLines(self._batch.endpoint)
        try:
            async with aclosing(self._lines()) as lines:
                async for line in lines:
                    await _check(check, line)
                    if check.is_over:
                        break
            errors = check.errors
        except NotFound:
            errors = [FILE_NOT_FOUND]
        if errors:
            await self._update(partial(self._failed, errors=errors))
            logger.info("batch %s failed: %s", self._claim.batch_id, errors[0].code)
            return
        counts = replace(self._batch.request_counts, total=check.count)
        await self._update(lambda b: self._stepped(replace(b, request_counts=counts), "begin"))

    async def _run_lines(self) -> None:
        """Answer the lines, then finalize, and record how the batch is to end."""
        errors: Sequence[BatchError] = ()
        try:
            await self._answer_lines()
        except* NotFound:
            errors = [FILE_NOT_FOUND]
        except* RequestError as group:  # a line was right when it was checked: settings changed
            errors = [BatchError(code="invalid_value", message=str(_first(group)))]
        progress = await self._parts.batches.get_progress(self._claim)
        is_late = self._has_expired and len(progress.lines) < self._batch.request_counts.total

        def finalize(batch: Batch) -> Batch:
            batch = self._stepped(batch, "finalize")
            if batch.status != "finalizing":  # cancelled meanwhile
                return batch
            if errors:
                return replace(batch, errors=BatchErrors(data=errors))
            return replace(batch, expired_at=int(self._parts.now())) if is_late else batch

        await self._update(finalize)

    async def _finish(self) -> None:
        if self._batch.expired_at is not None:
            with suppress(RequestError):  # the input file was deleted
                await self._expire_lines()
        await self._write_files()

    def _stepped(self, batch: Batch, step: Step) -> Batch:
        """Return the batch after a step, or as it is, if it was cancelled meanwhile."""
        return advance(batch, step, self._parts.now()) if may(batch, step) else batch

    def _failed(self, batch: Batch, *, errors: Sequence[BatchError]) -> Batch:
        batch = advance(batch, "fail", self._parts.now())
        return replace(batch, errors=BatchErrors(data=errors))

    async def _update(self, change: ChangeBatch) -> None:
        batch = await retry(
            lambda: self._parts.batches.update_claimed(self._claim, change), STORE_RETRY_S
        )
        if batch is None:
            raise LeaseLost
        self._batch = batch

    async def _write_files(self) -> None:
        progress = await self._parts.batches.get_progress(self._claim)
        errors = [] if self._batch.errors is None else [*self._batch.errors.data]
        ids: list[str | None] = []
        for failures in (False, True):
            try:
                ids.append(await self._write_when_there_is_room(progress, failures=failures))
            except RequestError as error:
                code = error.code or "file_quota_exceeded"
                errors.append(BatchError(code=code, message=error.message))
                ids.append(None)
        step: Step = "complete" if self._batch.expired_at is None else "expire"

        def end(batch: Batch) -> Batch:
            batch = replace(batch, output_file_id=ids[0], error_file_id=ids[1])
            if errors:
                return self._failed(batch, errors=errors)
            return advance(batch, step, self._parts.now())

        await self._update(end)
        counts = self._batch.request_counts
        logger.info(
            "batch %s %s: %d of %d requests completed, %d failed",
            *(self._claim.batch_id, self._batch.status),
            *(counts.completed, counts.total, counts.failed),
        )

    async def _write_when_there_is_room(
        self, progress: BatchProgress, *, failures: bool
    ) -> str | None:
        """Raises: RequestError if there is still no room a day after the batch has expired."""
        while True:
            try:
                return await self._parts.write_file(self._claim, progress, failures=failures)
            except RequestError as error:
                if self._parts.now() > self._batch.expires_at + WINDOW_S:
                    raise
                logger.warning("batch %s waits: %s", self._claim.batch_id, error.message)
            await asyncio.sleep(FULL_RETRY_S)

    # --- its lines --------------------------------------------------------------------------------

    def _lines(self) -> AsyncGenerator[InputLine]:
        blocks = self._parts.files.stream_content(self._claim.tenant, self._batch.input_file_id)
        return read_lines(blocks, max_bytes=self._parts.limits.line_bytes)

    async def _answer_lines(self) -> None:
        """Send the requests that have no result yet. Raises: NotFound; StoreError."""
        progress = await self._parts.batches.get_progress(self._claim)
        self._output_bytes = progress.output_bytes
        places = asyncio.Semaphore(self._parts.limits.lines)
        async with asyncio.TaskGroup() as running, aclosing(self._lines()) as lines:
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
        return self._error_line(
            custom_id,
            FULL,
            f"The output file may have {self._parts.limits.file_bytes} bytes, and the answer does "
            "not fit.",
        )

    def _error_line(self, custom_id: str, code: str, message: str) -> bytes:
        return error_line(self._parts.new_id("batch_req"), custom_id, code, message)

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

    async def _expire_lines(self) -> None:
        """Write an error for each line that has no result. Raises: NotFound; StoreError."""
        progress = await self._parts.batches.get_progress(self._claim)
        expired: list[LineResult] = []
        message = "This request could not be executed before the completion window expired."
        async for line in self._lines():  # read to its end
            if line.number in progress.lines:
                continue
            request = await run_in_thread(len(line.text), read_line, line.text)
            body = self._error_line(request.custom_id, EXPIRED, message)
            expired.append(LineResult(line=line.number, is_failure=True, body=body))
            if len(expired) == EXPIRED_PORTION:
                await self._add(expired)
                expired = []
        await self._add(expired)

    async def _add(self, results: Sequence[LineResult]) -> None:
        if not await retry(
            lambda: self._parts.batches.add_results(self._claim, results), STORE_RETRY_S
        ):
            raise LeaseLost


async def _check(check: CheckLines, line: InputLine) -> None:
    try:
        await run_in_thread(len(line.text), check.add, line.number, line.text)
    except BodyTooLarge as error:
        check.count += 1
        check.add_error(line.number, str(error.code), error.message)


def _free(slot: _LineSlot, places: asyncio.Semaphore, _task: object) -> None:
    """Free what a line had. Its task may have been cancelled before its first step."""
    slot.release()
    places.release()


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
