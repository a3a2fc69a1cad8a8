"""A batch ends as it must, whatever happens to its server, its files and its time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.adapters.stores.batches.store import SqliteBatches
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.ports import (
    AnswerRequest,
    BatchClaim,
    Batches,
    FileUsage,
    LineResult,
    StoredFile,
)
from antiphon.application.resources.batches.output_files import WriteFile
from antiphon.application.resources.batches.run import RunBatches
from antiphon.application.resources.batches.work import BatchParts, WorkLimits, WorkOnBatch
from antiphon.application.resources.files import CreateFile, FileLimits
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import WINDOW_S, Batch, advance
from antiphon.domain.batches.lines import LineAnswer
from antiphon.domain.errors import StoreError

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


@pytest.fixture
async def batches() -> AsyncIterator[SqliteBatches]:
    batches = SqliteBatches(None)
    await batches.start()
    yield batches
    await batches.aclose()


@pytest.fixture
def world(batches: SqliteBatches) -> World:
    return World(batches)


def counts(batch: Batch) -> tuple[int, int, int]:
    each = batch.request_counts
    return each.total, each.completed, each.failed


def code_of(batch: Batch) -> str:
    assert batch.errors is not None
    return batch.errors.data[0].code


async def test_each_line_is_answered_in_the_order_of_the_file(world: World) -> None:
    await world.create(7)
    batch = await world.work()
    assert (batch.status, counts(batch)) == ("completed", (7, 7, 0))
    found = await world.lines(batch.output_file_id)
    assert [each["custom_id"] for each in found] == [f"c{n}" for n in range(7)]
    assert [each["response"]["body"] for each in found] == [{"n": n} for n in range(7)]
    assert batch.error_file_id is None


async def test_only_so_many_lines_run_at_a_time(world: World) -> None:
    running, most = 0, 0

    async def count(_number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    world.answer.before = count
    await world.create(20)
    await world.work()
    assert most == 3


async def test_lines_that_fail_are_in_the_error_file(world: World) -> None:
    async def fail_odd(number: int) -> LineAnswer | None:
        if number % 2 == 0:
            return None
        return LineAnswer(status_code=400, request_id="req", body=b'{"error":{"code":"bad"}}')

    world.answer.before = fail_odd
    await world.create(5)
    batch = await world.work()
    assert (batch.status, counts(batch)) == ("completed", (5, 3, 2))
    failed = await world.lines(batch.error_file_id)
    assert [each["custom_id"] for each in failed] == ["c1", "c3"]
    assert {each["response"]["status_code"] for each in failed} == {400}
    assert {each["error"] for each in failed} == {None}


async def test_a_refused_line_is_sent_again(world: World) -> None:
    refused: list[int] = []

    async def refuse_once(number: int) -> LineAnswer | None:
        if number in refused:
            return None
        refused.append(number)
        return LineAnswer(status_code=429, request_id="req", body=b"{}", retry_after_s=0.001)

    world.answer.before = refuse_once
    await world.create(5)
    batch = await world.work()
    assert (batch.status, counts(batch)) == ("completed", (5, 5, 0))
    assert sorted(refused) == [0, 1, 2, 3, 4]


async def test_lines_that_wait_for_a_limit_do_not_hold_up_other_batches_of_the_tenant(
    world: World,
) -> None:
    refused = asyncio.Event()

    async def refuse(_number: int) -> LineAnswer | None:
        if second:
            return None
        refused.set()
        return LineAnswer(status_code=429, request_id="req", body=b"{}", retry_after_s=3600)

    world.answer.before = refuse
    second = False
    await world.create(10)
    first = asyncio.create_task(world.work())
    await refused.wait()
    second = True
    await world.batches.create_batch(CALLER, a_batch("batch_2"))
    claimed = await world.batches.claim_batch(claim_s=600)
    assert claimed is not None
    async with asyncio.timeout(5):
        await WorkOnBatch(world.parts, claimed)()
    batch = await world.batches.get_batch(US, "batch_2")
    assert (batch.status, counts(batch)) == ("completed", (10, 10, 0))
    await world.cancel()
    await first


async def test_a_file_with_wrong_lines_fails_and_nothing_is_sent(world: World) -> None:
    await world.create_of(b'{"custom_id": 1}\n\n{"b"\n')
    batch = await world.work()
    assert (batch.status, batch.failed_at) == ("failed", NOW)
    assert batch.errors is not None
    assert [(each.code, each.line) for each in batch.errors.data] == [
        ("invalid_type", 1),
        ("invalid_json_line", 3),
    ]
    assert world.answer.asked == []


async def test_a_line_that_is_longer_than_a_request_is_wrong(world: World) -> None:
    await world.create_of(b"x" * 2000 + b"\n{}\n")
    batch = await world.work()
    assert batch.errors is not None
    assert [(each.code, each.line) for each in batch.errors.data] == [
        ("line_too_long", 1),
        ("missing_required_parameter", 2),
    ]


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"custom_id":"a","method":"POST","url":"/v1/responses","body":{"n":0}}',
        b'\r\n \n{"custom_id":"a","method":"POST","url":"/v1/responses","body":{"n":0}}\r\n\r\n',
    ],
)
async def test_blank_lines_and_marks_of_editors_do_not_matter(world: World, content: bytes) -> None:
    await world.create_of(content)
    batch = await world.work()
    assert (batch.status, counts(batch)) == ("completed", (1, 1, 0))


# --- cancellation and expiry ----------------------------------------------------------------------


class Noticing(SqliteBatches):
    """Batches that say when their server has found out about a cancellation."""

    def __init__(self) -> None:
        super().__init__(None)
        self.noticed = asyncio.Event()

    async def extend_claim(self, claim: BatchClaim, seconds: float) -> Batch | None:
        batch = await super().extend_claim(claim, seconds)
        if batch is not None and batch.status == "cancelling":
            self.noticed.set()
        return batch


async def test_a_cancelled_batch_finishes_running_lines_and_starts_no_more() -> None:
    batches = Noticing()
    await batches.start()
    world = World(batches)
    running = asyncio.Event()

    async def wait(_number: int) -> None:
        running.set()
        await batches.noticed.wait()

    world.answer.before = wait
    await world.create(20)
    work = asyncio.create_task(world.work())
    await running.wait()
    await world.cancel()
    batch = await work
    assert (batch.status, counts(batch)) == ("cancelled", (20, 3, 0))
    assert len(await world.lines(batch.output_file_id)) == 3
    assert (batch.cancelled_at, batch.error_file_id, batch.errors) == (NOW, None, None)
    await batches.aclose()


async def test_a_batch_that_was_cancelled_before_it_began_sends_nothing(world: World) -> None:
    await world.create(3)
    await world.cancel()
    batch = await world.work()
    assert (batch.status, batch.output_file_id, world.answer.asked) == ("cancelled", None, [])


async def test_a_line_that_waits_for_a_limit_ends_with_the_cancellation(world: World) -> None:
    refused = asyncio.Event()

    async def refuse(_number: int) -> LineAnswer:
        refused.set()
        return LineAnswer(status_code=429, request_id="req", body=b"{}", retry_after_s=3600)

    world.answer.before = refuse
    await world.create(3)
    work = asyncio.create_task(world.work())
    await refused.wait()
    await world.cancel()
    batch = await work
    assert (batch.status, counts(batch)) == ("cancelled", (3, 0, 0))


async def test_lines_that_are_not_answered_in_time_expire(world: World) -> None:
    async def expire(number: int) -> LineAnswer | None:
        if number < 2:
            return None
        world.time = NOW + WINDOW_S
        return LineAnswer(status_code=429, request_id="req", body=b"{}", retry_after_s=3600)

    world.answer.before = expire
    await world.create(6)
    batch = await world.work()
    assert (batch.status, counts(batch)) == ("expired", (6, 2, 4))
    assert batch.expired_at == NOW + WINDOW_S
    assert await world.codes(batch) == ["batch_expired"] * 4
    assert len(await world.lines(batch.output_file_id)) == 2


async def test_a_batch_that_waited_too_long_expires_without_a_request(world: World) -> None:
    await world.create(2)
    world.time = NOW + WINDOW_S + 1
    batch = await world.work()
    assert (batch.status, counts(batch)) == ("expired", (2, 0, 2))
    assert world.answer.asked == []


# --- files ----------------------------------------------------------------------------------------


async def test_a_batch_whose_input_was_deleted_fails_with_what_it_has(world: World) -> None:
    await world.create(2)
    await world.files.delete_file(US, "file-in")
    batch = await world.work()
    assert (batch.status, code_of(batch)) == ("failed", "input_file_not_found")


async def test_a_line_that_new_settings_refuse_fails_the_batch_with_what_it_has(
    world: World,
) -> None:
    await world.create(3)
    await world.batches.update_batch(US, "batch_1", lambda batch: advance(batch, "begin", NOW))
    world.parts = replace(world.parts, limits=replace(world.parts.limits, line_bytes=10))
    batch = await world.work()
    assert (batch.status, code_of(batch)) == ("failed", "invalid_value")


async def test_answers_beyond_the_size_of_a_file_are_errors(batches: SqliteBatches) -> None:
    world = World(batches, file_bytes=300)
    await world.create(6)
    batch = await world.work()
    assert batch.status == "completed"
    output = await world.lines(batch.output_file_id)
    assert 0 < len(output) < 6
    assert await world.codes(batch) == ["output_too_large"] * (6 - len(output))


async def test_results_without_room_are_lost_only_a_day_after_the_expiry(
    batches: SqliteBatches,
) -> None:
    world = World(batches, quota_bytes=0)
    await world.create(1)
    world.time = NOW + 2 * WINDOW_S + 1
    batch = await world.work()
    assert (batch.status, code_of(batch)) == ("failed", "file_quota_exceeded")
    assert (await world.files.get_usage(US)).files == 1


# --- kills ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_batch_survives_a_kill_at_each_of_its_steps(
    batches: SqliteBatches, is_done: bool, is_late: bool
) -> None:
    """The same batch, killed at the first step, then at the second, and so on."""
    world = World(batches)

    async def fail_one(number: int) -> LineAnswer | None:
        if is_late and number == 4:
            world.time = NOW + WINDOW_S
            return LineAnswer(status_code=503, request_id="req", body=b"{}", retry_after_s=9)
        if number == 2:
            return LineAnswer(status_code=400, request_id="req", body=b"{}")
        return None

    world.answer.before = fail_one
    await world.create(5)
    kills = 0
    while True:
        claimed = await batches.claim_batch(claim_s=600)
        if claimed is None:
            break
        mortal: Any = Mortal(batches, kills % 9 + 1, is_done=is_done)
        parts = world._parts(mortal)
        try:
            async with asyncio.timeout(10):
                await WorkOnBatch(parts, claimed)()
        except* Killed:
            kills += 1
            await batches.extend_claim(claimed.claim, 0)
    batch = await batches.get_batch(US, "batch_1")
    assert kills > 4
    assert batch.status == ("expired" if is_late else "completed")
    assert counts(batch) == ((5, 3, 2) if is_late else (5, 4, 1))
    output = await world.lines(batch.output_file_id)
    errors = await world.lines(batch.error_file_id)
    ids = [each["custom_id"] for each in output + errors]
    assert sorted(ids) == ["c0", "c1", "c2", "c3", "c4"]


class HalfWritten(MemoryFileStore):
    """Files of which each id keeps the file that a killed server has begun from all others."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[str] = set()

    async def create_file(
        self, tenant: str, file: StoredFile, content: bytes, *, limit: FileUsage | None = None
    ) -> None:
        if file.id == "file-in":
            await super().create_file(tenant, file, content, limit=limit)
        elif file.id in self.begun:
            raise StoreError("the same id already exists")
        elif self.begun:
            await super().create_file(tenant, file, content, limit=limit)
        else:
            self.begun.add(file.id)
            raise Killed


async def test_a_file_that_a_killed_server_has_half_written_is_written_anew(
    batches: SqliteBatches,
) -> None:
    world = World(batches)
    world.files = HalfWritten()
    world.parts = world._parts(batches)
    await world.create(2)
    claimed = await batches.claim_batch(claim_s=600)
    assert claimed is not None
    with pytest.RaisesGroup(Killed):
        await WorkOnBatch(world.parts, claimed)()
    await batches.extend_claim(claimed.claim, 0)
    batch = await world.work()
    assert batch.status == "completed"
    assert len(await world.lines(batch.output_file_id)) == 2


async def test_answers_that_come_while_others_are_written_share_a_write(
    batches: SqliteBatches,
) -> None:
    sizes: list[int] = []
    is_writing, others_answer = asyncio.Event(), asyncio.Event()

    class Slow(Mortal):
        async def add_results(self, claim: BatchClaim, results: Sequence[LineResult]) -> bool:
            sizes.append(len(results))
            is_writing.set()
            if len(sizes) == 1:
                await others_answer.wait()
                for _ in range(5):  # they come to wait for this write
                    await asyncio.sleep(0)
            return await batches.add_results(claim, results)

    async def answer_the_others_meanwhile(number: int) -> None:
        if number:
            await is_writing.wait()
        if number == 2:
            others_answer.set()

    slow: Any = Slow(batches, 1000, is_done=False)
    world = World(batches)
    world.parts = world._parts(slow)
    world.answer.before = answer_the_others_meanwhile
    await world.create(3)
    batch = await world.work()
    assert counts(batch) == (3, 3, 0)
    assert sizes == [1, 2]


async def test_a_store_that_fails_for_a_moment_costs_no_answer(batches: SqliteBatches) -> None:
    world = World(batches)
    failures = 3

    class Failing(Mortal):
        async def add_results(self, *args: Any) -> bool:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise StoreError("down")
            return await batches.add_results(*args)

    failing: Any = Failing(batches, 1000, is_done=False)
    world.parts = world._parts(failing)
    await world.create(2)
    batch = await world.work()
    assert counts(batch) == (2, 2, 0)
    assert sorted(world.answer.asked) == [0, 1]


async def test_a_server_that_lost_its_claim_writes_nothing_more(world: World) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_number: int) -> None:
        reached.set()
        await go_on.wait()

    world.answer.before = wait
    await world.create(2)
    claimed = await world.batches.claim_batch(claim_s=600)
    assert claimed is not None
    work = asyncio.create_task(WorkOnBatch(world.parts, claimed)())
    await reached.wait()
    await world.batches.extend_claim(claimed.claim, 0)
    other = await world.batches.claim_batch(claim_s=600)
    assert other is not None
    go_on.set()
    async with asyncio.timeout(10):
        await work
    assert (await world.batches.get_progress(other.claim)).lines == frozenset()


async def test_a_server_that_stops_leaves_its_batches_to_others_at_once(world: World) -> None:
    reached = asyncio.Event()

    async def hang(_number: int) -> None:
        reached.set()
        await asyncio.Event().wait()

    world.answer.before = hang
    await world.create(2)
    running = asyncio.create_task(RunBatches(world.parts, keep_days=30).run_forever())
    await reached.wait()
    assert await world.batches.claim_batch(claim_s=1) is None
    running.cancel()
    await asyncio.wait([running])
    assert await world.batches.claim_batch(claim_s=1) is not None


async def test_many_batches_of_a_tenant_do_not_keep_another_waiting(world: World) -> None:
    """It has four batches here at most, and one that comes later begins before its others."""
    begun: list[str] = []
    all_begun = asyncio.Event()

    class Hanging(Mortal):
        async def get_progress(self, claim: BatchClaim) -> None:
            begun.append(claim.tenant)
            if len(begun) == 5:
                all_begun.set()
            await asyncio.Event().wait()

    for number in range(20):
        await create_empty(world, "many", number)
    await create_empty(world, "one", 99)
    hanging: Any = Hanging(world.batches, 10_000, is_done=False)
    running = asyncio.create_task(RunBatches(world._parts(hanging), keep_days=0).run_forever())
    async with asyncio.timeout(10):
        await all_begun.wait()
    running.cancel()
    await asyncio.wait([running])
    assert sorted(begun[:2]) == ["many", "one"]
    assert sorted(begun) == ["many"] * 4 + ["one"]


async def create_empty(world: World, tenant: str, number: int) -> None:
    batch = Batch(
        id=f"batch_{number}",
        endpoint=ENDPOINT,
        input_file_id="file-none",
        status="in_progress",
        created_at=NOW,
        expires_at=NOW + WINDOW_S,
    )
    await world.batches.create_batch(Caller(tenant=tenant), batch)
