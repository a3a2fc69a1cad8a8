"""A server that runs batches, with a clock that a test sets, and calls that it does not survive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.ports import (
    AnswerRequest,
    Batches,
    StoredFile,
)
from antiphon.application.resources.batches.output_files import WriteFile
from antiphon.application.resources.batches.parts import BatchParts, WorkLimits
from antiphon.application.resources.batches.work import WorkOnBatch
from antiphon.application.resources.files import CreateFile, FileLimits
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import WINDOW_S, Batch, advance
from antiphon.domain.batches.lines import LineAnswer

Json = dict[str, Any]
US = "us"
CALLER = Caller(tenant=US)
ENDPOINT = "/v1/responses"
NOW = 1_790_000_000


class Killed(Exception):
    """The server is gone."""


class Echo(AnswerRequest):
    """Answers with the body; `before` may wait, refuse or fail."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.before: Callable[[int], Awaitable[LineAnswer | None]] | None = None

    async def __call__(self, caller: Caller, url: str, body: bytes) -> LineAnswer:
        assert (caller, url) == (CALLER, ENDPOINT)
        number = json.loads(body)["n"]
        if self.before is not None and (answer := await self.before(number)) is not None:
            return answer
        self.asked.append(number)
        return LineAnswer(status_code=200, request_id=f"req_{number}", body=body)


def a_batch(batch_id: str) -> Batch:
    return Batch(
        id=batch_id,
        endpoint=ENDPOINT,
        input_file_id="file-in",
        created_at=NOW,
        expires_at=NOW + WINDOW_S,
    )


class World:
    """A server that runs batches, with a clock that a test sets."""

    def __init__(self, batches: Batches, **limits: int) -> None:
        self.time = float(NOW)
        self.batches = batches
        self.files: MemoryFileStore = MemoryFileStore()
        self.answer = Echo()
        self._ids = 0
        self.parts = self._parts(batches, **limits)

    def _parts(
        self, batches: Batches, *, file_bytes: int = 10**6, quota_bytes: int = 10**6
    ) -> BatchParts:
        limits = FileLimits(max_bytes=file_bytes, quota_bytes=quota_bytes)
        create = CreateFile(self.files, limits=limits, new_id=self.new_id, now=self.now)
        return BatchParts(
            batches=batches,
            files=self.files,
            answer=self.answer,
            write_file=WriteFile(batches, self.files, create, BytesInWork(), now=self.now),
            slots=FairQueue(4, per_tenant=3),
            limits=WorkLimits(line_bytes=1000, file_bytes=file_bytes, claim_s=0.4),
            new_id=self.new_id,
            now=self.now,
        )

    def now(self) -> float:
        return self.time

    def new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}_{self._ids}"

    async def create(self, count: int) -> Batch:
        lines = [
            {"custom_id": f"c{n}", "method": "POST", "url": ENDPOINT, "body": {"n": n}}
            for n in range(count)
        ]
        return await self.create_of("\n".join(map(json.dumps, lines)).encode())

    async def create_of(self, content: bytes) -> Batch:
        file = StoredFile(
            id="file-in", filename="in", purpose="batch", bytes=len(content), created_at=NOW
        )
        await self.files.create_file(US, file, content)
        batch = a_batch("batch_1")
        await self.batches.create_batch(CALLER, batch)
        return batch

    async def work(self) -> Batch:
        """Work on the batch until it ends, and return it."""
        claimed = await self.batches.claim_batch(claim_s=600)
        assert claimed is not None
        async with asyncio.timeout(10):
            await WorkOnBatch(self.parts, claimed)()
        return await self.batches.get_batch(US, "batch_1")

    async def cancel(self) -> None:
        await self.batches.update_batch(
            US, "batch_1", lambda batch: advance(batch, "cancel", self.time)
        )

    async def lines(self, file_id: str | None) -> list[Json]:
        if file_id is None:
            return []
        content = await self.files.get_content(US, file_id)
        return [json.loads(line) for line in content.splitlines()]

    async def codes(self, batch: Batch) -> list[str]:
        return [each["error"]["code"] for each in await self.lines(batch.error_file_id)]


def counts(batch: Batch) -> tuple[int, int, int]:
    each = batch.request_counts
    return each.total, each.completed, each.failed


def code_of(batch: Batch) -> str:
    assert batch.errors is not None
    return batch.errors.data[0].code


class Mortal:
    """Batches of a server that dies at its n-th call: before it, or when it is done."""

    def __init__(self, batches: Batches, dies_at: int, *, is_done: bool) -> None:
        self._batches = batches
        self._left = dies_at
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._batches, name)
        if name in ("claim_batch", "extend_claim"):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Killed
            if self._left == 0 and not self._is_done:
                raise Killed
            result = await method(*args, **kwargs)
            if self._left == 0:
                raise Killed
            return result

        return call
