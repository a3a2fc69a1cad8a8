"""Batches pass the contract in memory, in a file and in PostgreSQL, and outlive the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from antiphon.adapters.stores.batches.store import SqliteBatches
from antiphon.adapters.stores.postgres.batches import PostgresBatches
from antiphon.application.ports import Batches
from antiphon.testing.batches import (
    CLAIM_S,
    US,
    BatchesContract,
    a_batch,
    a_caller,
    a_result,
    claim,
    failed,
    lines_of,
)

STORES: Mapping[str, Callable[[Path], Batches]] = {
    "memory": lambda _: SqliteBatches(None),
    "file": lambda folder: SqliteBatches(folder / "batches.db"),
}


class TestBatches(BatchesContract):
    @pytest.fixture(params=STORES)
    async def batches(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[Batches]:
        batches = STORES[request.param](tmp_path)
        await batches.start()
        yield batches
        await batches.aclose()


class TestPostgresBatches(BatchesContract):
    @pytest.fixture
    async def batches(self, postgres: tuple[str, str]) -> AsyncIterator[Batches]:
        dsn, schema = postgres
        batches = PostgresBatches(dsn, schema=schema)
        await batches.start()
        yield batches
        await batches.aclose()


async def test_what_a_dead_server_had_claimed_is_due_when_the_file_is_opened_alone(
    tmp_path: Path,
) -> None:
    batches = SqliteBatches(tmp_path / "batches.db")
    await batches.start()
    await batches.create_batch(a_caller(), a_batch())
    first = (await claim(batches)).claim
    await batches.add_results(first, [a_result(1)])
    await batches.aclose()
    again = SqliteBatches(tmp_path / "batches.db")
    await again.start()
    second = (await claim(again)).claim
    assert second.attempt == 2
    assert await lines_of(again, second) == [1]
    await again.aclose()


async def test_servers_that_share_the_file_share_batches(tmp_path: Path) -> None:
    ours, theirs = (SqliteBatches(tmp_path / "batches.db") for _ in range(2))
    await ours.start()
    await theirs.start()
    await ours.create_batch(a_caller(), a_batch())
    assert await theirs.get_batch(US, "batch_1") == a_batch()
    await claim(theirs)
    assert await ours.claim_batch(claim_s=CLAIM_S) is None
    await theirs.aclose()
    await ours.aclose()


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_erased_results_leave_no_byte_behind(tmp_path: Path) -> None:
    batches = SqliteBatches(tmp_path / "batches.db")
    await batches.start()
    await batches.create_batch(a_caller(), a_batch())
    claimed = (await claim(batches)).claim
    await batches.add_results(claimed, [a_result(1, b"secretword" * 10)])
    await batches.update_claimed(claimed, failed)
    while await batches.sweep(ended_before=0, limit=100):
        pass
    await batches.aclose()
    assert b"secretword" not in all_bytes(tmp_path)
