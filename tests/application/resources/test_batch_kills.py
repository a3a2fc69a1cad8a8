"""A batch goes on after its server was killed, stopped, or lost its claim, at whatever step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.application.resources.batch_world import (
    ENDPOINT,
    NOW,
    US,
    Killed,
    Mortal,
    World,
    counts,
)

from antiphon.adapters.stores.batches.store import SqliteBatches
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.ports import BatchClaim, FileUsage, LineResult, StoredFile
from antiphon.application.resources.batches.run import RunBatches
from antiphon.application.resources.batches.work import WorkOnBatch
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import WINDOW_S, Batch
from antiphon.domain.batches.lines import LineAnswer
from antiphon.domain.errors import StoreError


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
