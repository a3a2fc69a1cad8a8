"""Vector stores in PostgreSQL pass the contract, and servers share them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from antiphon.adapters.stores.postgres.vector_stores import PostgresVectorStores
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.domain.errors import SettingsError
from antiphon.domain.retrieval.text_chunks import TextChunk
from antiphon.testing.vector_stores import (
    CLAIM_S,
    THEM,
    US,
    VectorStoresContract,
    a_file,
    a_store,
    claim_job,
    index_file,
    search,
    texts_of,
    vectors_of,
)

Pair = tuple[PostgresVectorStores, PostgresVectorStores]


class TestPostgresVectorStores(VectorStoresContract):
    @pytest.fixture
    async def stores(self, pair: Pair) -> PostgresVectorStores:
        return pair[0]


@pytest.fixture
async def pair(postgres: tuple[str, str]) -> AsyncIterator[Pair]:
    dsn, schema = postgres
    one, other = (PostgresVectorStores(dsn, schema=schema) for _ in range(2))
    await asyncio.gather(one.start(), other.start())
    yield one, other
    await one.aclose()
    await other.aclose()


@pytest.fixture
async def rows(postgres: tuple[str, str]) -> AsyncIterator[asyncpg.Connection]:
    dsn, schema = postgres
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    yield connection
    await connection.close()


async def test_what_one_server_indexes_another_finds_and_removes(pair: Pair) -> None:
    one, other = pair
    await one.create_store(US, a_store())
    await other.create_files(US, "vs_1", [a_file("a")])
    job = await claim_job(one, "file-a")
    meaning = vectors_of([1, 0])
    assert await one.add_chunks(job, [TextChunk(text="hello")], meaning, first=True)
    assert await one.finish_job(job)
    for server in pair:
        for _ in range(2):  # the second time, it remembers the vectors
            [passage] = await search(server, "hello", vectors=vectors_of([0.6, 0.8]))
            assert round(passage.embedding_score, 3) == 0.6
    await other.delete_file(US, "vs_1", "file-a")
    assert await search(one, "hello", vectors=meaning) == []


async def test_another_server_takes_over_the_job_of_a_dead_one(pair: Pair) -> None:
    one, other = pair
    await one.create_store(US, a_store())
    await one.create_files(US, "vs_1", [a_file("a")])
    [job] = await one.claim_due_jobs(limit=1, claim_s=0.0)
    assert await one.add_chunks(job, [TextChunk(text="hello half")], None, first=True)
    # The first server dies here.
    [again] = await other.claim_due_jobs(limit=1, claim_s=CLAIM_S)
    assert (again.file_id, again.attempt) == (job.file_id, 2)
    assert await other.add_chunks(again, [TextChunk(text="hello whole")], None, first=True)
    assert await other.finish_job(again)
    assert not await one.finish_job(job)
    assert texts_of(await search(one, "hello")) == ["hello whole"]


async def test_the_order_is_the_one_of_sqlite_and_the_scores_are_near(pair: Pair) -> None:
    texts = [
        "Refunds are paid within two weeks: to ask for a refund, write to us.",
        "Opening hours and holidays.",
        "A refund of our energy.",
        "Write to us within opening hours; we write back in two weeks.",
        "Le crème brûlée du chef.",
        "10 refunds in 1990, and 1e5 more.",
    ]
    sqlite = SqliteVectorStores(None)
    await sqlite.start()
    for stores in (pair[0], sqlite):
        await stores.create_store(US, a_store())
        await index_file(stores, "a", *texts)
    for words in ("refund weeks?", "writing to us", "creme", "1990", "the opening of hours"):
        ours, theirs = await search(pair[0], words), await search(sqlite, words)
        assert texts_of(ours) == texts_of(theirs), words
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.text_score == pytest.approx(other.text_score, abs=0.05), words
    await sqlite.aclose()


async def test_erased_chunks_leave_no_row(pair: Pair, rows: asyncpg.Connection) -> None:
    one, other = pair
    for tenant, number in ((US, 1), (THEM, 2)):
        await one.create_store(tenant, a_store(number))
        await index_file(
            one,
            "a",
            *("hello", "owl"),
            tenant=tenant,
            store_id=f"vs_{number}",
            meaning=vectors_of([1, 0], [0, 1]),
        )
        await other.delete_store(tenant, f"vs_{number}")
    while await one.sweep(0, limit=1):
        pass
    for table in ("stores", "files", "batches", "chunks", "parts"):
        assert await rows.fetchval(f"SELECT count(*) FROM vector_{table}") == 0, table
    totals = await rows.fetch("SELECT chunks, words FROM vector_tenants")
    assert [tuple(each) for each in totals] == [(0, 0), (0, 0)]


async def test_a_database_that_does_not_answer_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="no server is listening there"):
        await PostgresVectorStores("postgresql://127.0.0.1:1/none").start()
