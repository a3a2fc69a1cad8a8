"""Work on one batch under a claim: check its lines, answer them, write its files.

Each step is written to the store before the next begins, and each answer before its line counts as
done. So another server can go on at any point: only lines that were running are sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from antiphon.application.ports import (
    BatchProgress,
    ChangeBatch,
    ClaimedBatch,
    LineResult,
)
from antiphon.application.resources.batches.answer_lines import AnswerLines
from antiphon.application.resources.batches.input_lines import InputLine, read_lines
from antiphon.application.resources.batches.parts import BatchParts
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
    CheckLines,
    error_line,
    read_line,
)
from antiphon.domain.errors import BodyTooLarge, LeaseLost, NotFound, RequestError, StoreError

logger = logging.getLogger("antiphon.batches")

STORE_RETRY_S = 10.0
"""How long an answer waits for a store that fails. After that, its request is sent again later."""

FULL_RETRY_S = 30.0
"""Seconds before another attempt to write files for which there was no room."""

EXPIRED_PORTION = 500
"""Expired lines that are written in one transaction."""

FILE_NOT_FOUND = BatchError(
    code="input_file_not_found",
    message="The input file was deleted before all of its requests were sent.",
    param="input_file_id",
)


class WorkOnBatch:
    """One batch, as long as this server has it."""

    def __init__(self, parts: BatchParts, claimed: ClaimedBatch) -> None:
        self._parts = parts
        self._claim = claimed.claim
        self._batch = claimed.batch
        self._news = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._answer_lines = AnswerLines(parts, claimed, self._add, self._is_stopping)

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
            await self._answer_lines(self._lines())
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

    async def _expire_lines(self) -> None:
        """Write an error for each line that has no result. Raises: NotFound; StoreError."""
        progress = await self._parts.batches.get_progress(self._claim)
        expired: list[LineResult] = []
        message = "This request could not be executed before the completion window expired."
        async for line in self._lines():  # read to its end
            if line.number in progress.lines:
                continue
            request = await run_in_thread(len(line.text), read_line, line.text)
            line_id = self._parts.new_id("batch_req")
            body = error_line(line_id, request.custom_id, EXPIRED, message)
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


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
