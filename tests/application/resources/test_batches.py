"""A batch ends as it must, whatever happens to its lines, its files and its time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.application.resources.batch_world import (
    CALLER,
    NOW,
    US,
    World,
    a_batch,
    code_of,
    counts,
)

from antiphon.adapters.stores.batches.store import SqliteBatches
from antiphon.application.ports import BatchClaim
from antiphon.application.resources.batches.work import WorkOnBatch
from antiphon.domain.batches.batch import WINDOW_S, Batch, advance
from antiphon.domain.batches.lines import LineAnswer


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
