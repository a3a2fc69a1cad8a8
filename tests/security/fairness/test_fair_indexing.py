"""Files and searches of one tenant's vector stores do not keep another waiting."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import apsw
import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.fair_jobs import FairJobs
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.stores.sqlite.file import SqliteFile
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.application.ports import Embeddings, IndexJob, StoredFile, Vectors
from antiphon.application.resources.indexing import MAX_WRITTEN_CHUNKS, IndexFiles
from antiphon.domain.retrieval.text_chunks import TextChunk
from antiphon.testing.vector_stores import a_file, a_store, vectors_of

FILES = int(os.environ.get("ANTIPHON_TEST_BIG_FILES", "6"))
BIG_TEXT = " ".join(f"word{number}" for number in range(100_000))
"""The text of a big file: about 20 batches of chunks."""

LIMIT_S = 30.0


class CountedEmbeddings(Embeddings):
    """Records the first word of each batch of texts."""

    def __init__(self) -> None:
        self.batches: list[str] = []

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        self.batches.append(texts[0].split()[0])
        await asyncio.sleep(0)
        return vectors_of(*([1.0, 0.0] for _ in texts))


async def add_file(
    files: MemoryFileStore,
    stores: SqliteVectorStores,
    tenant: str,
    name: str,
    text: str,
    *,
    store: int = 1,
) -> None:
    file = StoredFile(
        id=f"file-{name}", filename="a.txt", purpose="user_data", bytes=1, created_at=0
    )
    await files.create_file(tenant, file, text.encode())
    await stores.create_files(tenant, f"vs_{store}", [a_file(name)])


@pytest.fixture
async def stores() -> AsyncIterator[SqliteVectorStores]:
    stores = SqliteVectorStores(None)
    await stores.start()
    yield stores
    await stores.aclose()


async def test_a_small_file_waits_neither_for_many_files_nor_for_big_ones(
    stores: SqliteVectorStores,
) -> None:
    files, embeddings = MemoryFileStore(), CountedEmbeddings()
    await stores.create_store("greedy", a_store(1))
    await stores.create_store("other", a_store(2))
    for number in range(FILES):
        await add_file(files, stores, "greedy", f"big{number}", BIG_TEXT)
    await add_file(files, stores, "other", "small", "hello", store=2)
    async with asyncio.timeout(LIMIT_S):
        await IndexFiles(stores, files, PdfReader(), embeddings).run_once()
    assert len(embeddings.batches) > 50
    # At most one batch of each file that was started earlier, and those that their threads made.
    assert embeddings.batches.index("hello") < 10
    assert (await stores.get_file("other", "vs_2", "file-small")).status == "completed"


class CountedStores(SqliteVectorStores):
    """Records how many chunks each transaction writes."""

    def __init__(self) -> None:
        super().__init__(None)
        self.written: list[int] = []

    async def add_chunks(
        self, job: IndexJob, chunks: Sequence[TextChunk], vectors: Vectors | None, *, first: bool
    ) -> bool:
        self.written.append(len(chunks))
        return await super().add_chunks(job, chunks, vectors, first=first)


async def test_a_big_file_is_written_a_few_chunks_at_a_time() -> None:
    stores, files = CountedStores(), MemoryFileStore()
    await stores.start()
    await stores.create_store("greedy", a_store(1))
    await add_file(files, stores, "greedy", "a", BIG_TEXT)
    await IndexFiles(stores, files, PdfReader(), CountedEmbeddings()).run_once()
    assert (await stores.get_file("greedy", "vs_1", "file-a")).status == "completed"
    assert sum(stores.written) > 200
    assert max(stores.written) == MAX_WRITTEN_CHUNKS
    await stores.aclose()


async def test_slow_reads_of_one_tenant_leave_a_connection_to_the_others(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "a.db", readers=2)
    await file.start()
    goes_on = threading.Event()

    def read_slowly(_: apsw.Connection) -> bool:
        return goes_on.wait(LIMIT_S)

    slow = [asyncio.create_task(file.read(read_slowly, tenant="greedy")) for _ in range(30)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(LIMIT_S / 2):
            assert await file.read(lambda _: "read", tenant="other") == "read"
    finally:
        goes_on.set()
        assert await asyncio.gather(*slow) == [True] * 30
        await file.aclose()


def test_threads_take_the_jobs_of_tenants_in_turn() -> None:
    jobs = FairJobs[str]()
    for tenant, job in ["a1", "a2", "a3", "b1", "c1", "b2"]:
        jobs.put(tenant, job)
    jobs.close()
    order = ""
    while taken := jobs.take():
        order += taken[0]
        jobs.end(taken[0])
    assert order == "abcaba"


def test_a_tenant_has_no_more_than_its_share_of_the_threads() -> None:
    jobs = FairJobs[int](per_tenant=1)
    for number in range(2):
        jobs.put("greedy", number)
    assert jobs.take_now() == ("greedy", 0)
    assert jobs.take_now() is None
    jobs.put("other", 2)
    assert jobs.take_now() == ("other", 2)
    jobs.end("greedy")
    assert jobs.take_now() == ("greedy", 1)
