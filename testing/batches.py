"""Contract tests for the port `Batches`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.application.ports import (
    BatchClaim,
    Batches,
    ClaimedBatch,
    LineResult,
    VectorPageQuery,
)
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.batches.batch import Batch, BatchRequestCounts, advance
from antiphon.domain.errors import NotFound, RequestError
from antiphon.testing.vector_stores import check_is_not_in_list, check_pages

US, THEM = "us", "them/../us"
CLAIM_S = 600.0
PAST, FUTURE = 0.0, 4_000_000_000.0
AT = 1_790_000_000


def a_caller(tenant: str = US) -> Caller:
    policy = KeyPolicy(models=("m\0",), limits={"requests/min": 5})
    return Caller(tenant=tenant, key_id="key_1", key_name="Ünlucky 🍀", policy=policy)


def a_batch(number: int = 1, **fields: Any) -> Batch:
    return Batch(
        id=f"batch_{number}",
        endpoint="/v1/responses",
        input_file_id="file-1",
        created_at=AT,
        expires_at=AT + 86_400,
        metadata={"a": "b\0"},
        **fields,
    )


def a_result(line: int, body: bytes = b'{"a":1}\n', *, is_failure: bool = False) -> LineResult:
    return LineResult(line=line, is_failure=is_failure, body=body)


def begun(batch: Batch) -> Batch:
    return advance(batch, "begin", AT)


def failed(batch: Batch) -> Batch:
    return advance(batch, "fail", AT)


async def claim(batches: Batches, **options: Any) -> ClaimedBatch:
    claimed = await batches.claim_batch(claim_s=CLAIM_S, **options)
    assert claimed is not None
    return claimed


async def claim_again(batches: Batches, earlier: BatchClaim) -> BatchClaim:
    """Claim it as another server would when the claim is over."""
    await batches.extend_claim(earlier, 0)
    return (await claim(batches)).claim


async def lines_of(batches: Batches, claim: BatchClaim, *, failures: bool = False) -> list[int]:
    found = await batches.read_results(claim, failures=failures, limit_bytes=10_000)
    return [each.line for each in found]


@pytest.mark.asyncio
class BatchesContract:
    """Subclass it where pytest collects tests.

    class TestMyBatches(BatchesContract):
        @pytest_asyncio.fixture
        async def batches(self, tmp_path):
            batches = MyBatches(tmp_path / "batches")
            await batches.start()
            yield batches
            await batches.aclose()
    """

    @pytest.fixture
    def batches(self) -> Batches:
        raise NotImplementedError("override this fixture: return empty batches, started")

    async def test_a_batch_is_read_as_it_was_created(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())
        assert await batches.get_batch(US, "batch_1") == a_batch()

    async def test_batches_of_others_are_unknown(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())
        await batches.create_batch(a_caller(THEM), a_batch(2))
        for name in ("batch_1", "batch_none", "\0", "a" * 5000):
            with pytest.raises(NotFound):
                await batches.get_batch(THEM, name)
            with pytest.raises(NotFound):
                await batches.update_batch(THEM, name, begun)
        assert await batches.get_batch(US, "batch_1") == a_batch()

    async def test_batches_are_listed_in_pages(self, batches: Batches) -> None:
        names = [f"batch_{number}" for number in (3, 1, 4, 2)]
        for name in names:
            await batches.create_batch(a_caller(), a_batch(int(name[-1])))
        await batches.create_batch(a_caller(THEM), a_batch(9))

        async def read(query: VectorPageQuery) -> list[Batch]:
            return await batches.list_batches(US, query)

        await check_pages(read, names)
        await check_is_not_in_list(read, "batch_9")

    async def test_open_batches_are_counted(self, batches: Batches) -> None:
        for number in range(3):
            await batches.create_batch(a_caller(), a_batch(number))
        await batches.create_batch(a_caller(THEM), a_batch(9))
        await batches.update_batch(US, "batch_1", failed)
        assert await batches.count_open_batches(US) == 2
        assert await batches.count_open_batches("nobody") == 0

    async def test_a_change_is_stored_unless_it_raises(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())
        changed = await batches.update_batch(US, "batch_1", begun)
        assert (changed.status, changed.in_progress_at) == ("in_progress", AT)
        with pytest.raises(RequestError):
            await batches.update_batch(US, "batch_1", begun)
        assert await batches.get_batch(US, "batch_1") == changed

    async def test_concurrent_changes_see_each_other(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())

        def add_one(batch: Batch) -> Batch:
            total = batch.request_counts.total + 1
            return replace(batch, request_counts=BatchRequestCounts(total=total))

        changes = [batches.update_batch(US, "batch_1", add_one) for _ in range(10)]
        await asyncio.gather(*changes)
        assert (await batches.get_batch(US, "batch_1")).request_counts.total == 10

    # --- claims -----------------------------------------------------------------------------------

    async def test_a_claimed_batch_comes_with_its_caller(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())
        claimed = await claim(batches)
        assert (claimed.batch, claimed.caller) == (a_batch(), a_caller())
        assert (claimed.claim.tenant, claimed.claim.batch_id) == (US, "batch_1")
        assert claimed.claim.attempt == 1

    async def test_only_one_of_many_gets_a_batch(self, batches: Batches) -> None:
        for number in range(3):
            await batches.create_batch(a_caller(), a_batch(number))
        asked = [batches.claim_batch(claim_s=CLAIM_S) for _ in range(9)]
        found = [each.batch.id for each in await asyncio.gather(*asked) if each is not None]
        assert sorted(found) == ["batch_0", "batch_1", "batch_2"]
        assert await batches.claim_batch(claim_s=CLAIM_S) is None

    async def test_the_oldest_batch_comes_first_and_tenants_can_be_skipped(
        self, batches: Batches
    ) -> None:
        await batches.create_batch(a_caller(), a_batch(1))
        await batches.create_batch(a_caller(), a_batch(2))
        await batches.create_batch(a_caller(THEM), a_batch(3))
        assert (await claim(batches)).batch.id == "batch_1"
        assert (await claim(batches, skip=[US])).batch.id == "batch_3"
        assert await batches.claim_batch(claim_s=CLAIM_S, skip=[US, THEM]) is None

    async def test_a_claim_that_is_over_is_void_once_another_has_the_batch(
        self, batches: Batches
    ) -> None:
        await batches.create_batch(a_caller(), a_batch())
        first = (await claim(batches)).claim
        assert await batches.extend_claim(first, CLAIM_S) == a_batch()
        assert await batches.claim_batch(claim_s=CLAIM_S) is None
        second = await claim_again(batches, first)
        assert second.attempt == 2
        assert await batches.extend_claim(first, CLAIM_S) is None
        assert await batches.update_claimed(first, begun) is None
        assert not await batches.add_results(first, [a_result(1)])
        assert await batches.get_batch(US, "batch_1") == a_batch()
        assert (await batches.get_progress(second)).lines == frozenset()

    async def test_an_ended_batch_is_not_claimed_and_its_claims_are_void(
        self, batches: Batches
    ) -> None:
        await batches.create_batch(a_caller(), a_batch())
        claimed = (await claim(batches)).claim
        ended = await batches.update_claimed(claimed, failed)
        assert ended is not None
        assert ended.status == "failed"
        assert await batches.extend_claim(claimed, 0) is None
        assert not await batches.add_results(claimed, [a_result(1)])
        assert await batches.claim_batch(claim_s=CLAIM_S) is None

    # --- results ----------------------------------------------------------------------------------

    async def test_results_are_counted_and_read_by_file_in_order(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())
        claimed = (await claim(batches)).claim
        assert await batches.add_results(claimed, [a_result(3, b"333"), a_result(1, b"1")])
        assert await batches.add_results(claimed, [a_result(2, b"22", is_failure=True)])
        progress = await batches.get_progress(claimed)
        assert sorted(progress.lines) == [1, 2, 3]
        assert (progress.output_bytes, progress.error_bytes) == (4, 2)
        found = await batches.read_results(claimed, failures=False, limit_bytes=10_000)
        assert found == [a_result(1, b"1"), a_result(3, b"333")]
        assert await lines_of(batches, claimed, failures=True) == [2]
        counts = (await batches.get_batch(US, "batch_1")).request_counts
        assert (counts.completed, counts.failed) == (2, 1)

    async def test_a_line_keeps_its_first_result(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())
        first = (await claim(batches)).claim
        assert await batches.add_results(first, [a_result(1, b"first")])
        second = await claim_again(batches, first)
        again = [a_result(1, b"second", is_failure=True), a_result(2)]
        assert await batches.add_results(second, again)
        [kept, _] = await batches.read_results(second, failures=False, limit_bytes=10_000)
        assert kept == a_result(1, b"first")
        counts = (await batches.get_batch(US, "batch_1")).request_counts
        assert (counts.completed, counts.failed) == (2, 0)

    async def test_results_are_read_in_portions_of_their_bytes(self, batches: Batches) -> None:
        await batches.create_batch(a_caller(), a_batch())
        claimed = (await claim(batches)).claim
        sizes = {1: 10, 2: 10, 3: 500, 4: 10}
        await batches.add_results(claimed, [a_result(n, b"x" * size) for n, size in sizes.items()])
        portions, after = [], 0
        while found := await batches.read_results(
            claimed, failures=False, after=after, limit_bytes=20
        ):
            portions.append([each.line for each in found])
            after = found[-1].line
        assert portions == [[1, 2], [3], [4]]

    async def test_a_sweep_erases_results_of_ended_batches_then_old_batches(
        self, batches: Batches
    ) -> None:
        for number in (1, 2):
            await batches.create_batch(a_caller(), a_batch(number))
        ended, other = (await claim(batches)).claim, (await claim(batches)).claim
        for each in (ended, other):
            await batches.add_results(each, [a_result(line) for line in range(1, 6)])
        await batches.update_claimed(ended, failed)
        assert await batches.sweep(ended_before=PAST, limit=3) == 3
        assert await batches.sweep(ended_before=PAST, limit=3) == 2
        assert await batches.sweep(ended_before=PAST, limit=3) == 0
        kept = await batches.get_batch(US, "batch_1")
        assert (kept.status, kept.request_counts.completed) == ("failed", 5)
        assert await batches.sweep(ended_before=FUTURE, limit=3) == 1
        with pytest.raises(NotFound):
            await batches.get_batch(US, "batch_1")
        assert await lines_of(batches, other) == [1, 2, 3, 4, 5]
