"""Files are indexed in the background; an error of a file is stored with the file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.application.ports import Embeddings, IndexJob, StoredFile, Vectors
from antiphon.application.resources.indexing import MAX_ATTEMPTS, MAX_BATCH_CHUNKS, IndexFiles
from antiphon.domain.errors import EmbeddingsError
from antiphon.domain.retrieval.text_chunks import text_chunks
from antiphon.domain.retrieval.vector_stores import IndexingError, StoreFile
from antiphon.testing.vector_stores import SIZES, US, a_file, a_store, search, texts_of, vectors_of


class FakeEmbeddings(Embeddings):
    """Fails the first `failures` times."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.requests: list[Sequence[str]] = []

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        self.requests.append(texts)
        if self.failures:
            self.failures -= 1
            raise EmbeddingsError("No vectors now.")
        return vectors_of(*([1.0, 0.0] for _ in texts))


@pytest.fixture
async def stores() -> AsyncIterator[SqliteVectorStores]:
    stores = SqliteVectorStores(None)
    await stores.start()
    await stores.create_store(US, a_store())
    yield stores
    await stores.aclose()


@pytest.fixture
def files() -> MemoryFileStore:
    return MemoryFileStore()


async def add(stores: SqliteVectorStores, files: MemoryFileStore, name: str, text: str) -> None:
    content = text.encode()
    file = StoredFile(
        id=f"file-{name}",
        filename=f"{name}.txt",
        purpose="user_data",
        bytes=len(content),
        created_at=0,
    )
    await files.create_file(US, file, content)
    await stores.create_files(US, "vs_1", [a_file(name)])


async def index_all(
    stores: SqliteVectorStores, files: MemoryFileStore, embeddings: Embeddings | None = None
) -> StoreFile:
    """Index until nothing is due, and return the file `a`."""
    index = IndexFiles(stores, files, PdfReader(), embeddings, retry_delay_s=0)
    while await index.run_once():
        pass
    return await stores.get_file(US, "vs_1", "file-a")


async def test_a_long_file_is_added_in_batches(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    embeddings = FakeEmbeddings()
    await add(stores, files, "a", " ".join(f"word{n}" for n in range(20_000)))
    assert (await index_all(stores, files, embeddings)).status == "completed"
    assert len(embeddings.requests) > 1
    assert max(map(len, embeddings.requests)) == MAX_BATCH_CHUNKS
    for word in ("word0", "word19999"):
        assert word in texts_of(await search(stores, word))[0]


async def test_a_file_of_exactly_one_batch_asks_for_embeddings_once(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    embeddings = FakeEmbeddings()
    text = " ".join(f"word{n}" for n in range(20_000))
    sizes = {"size": SIZES.max_chunk_size_tokens, "overlap": SIZES.chunk_overlap_tokens}
    last = list(text_chunks(text, **sizes))[MAX_BATCH_CHUNKS - 1].text
    await add(stores, files, "a", text[: text.index(last) + len(last)])
    assert (await index_all(stores, files, embeddings)).status == "completed"
    assert list(map(len, embeddings.requests)) == [MAX_BATCH_CHUNKS]


class CountedClaims(SqliteVectorStores):
    """Counts how often claims are extended."""

    extended = 0

    async def extend_claim(self, job: IndexJob, seconds: float) -> bool:
        self.extended += 1
        return await super().extend_claim(job, seconds)


@pytest.mark.parametrize(("extend_after_s", "extended"), [(60.0, 0), (-1.0, 1)])
async def test_a_claim_is_extended_once_it_is_old(
    files: MemoryFileStore,
    monkeypatch: pytest.MonkeyPatch,
    extend_after_s: float,
    extended: int,
) -> None:
    monkeypatch.setattr("antiphon.application.resources.indexing.EXTEND_AFTER_S", extend_after_s)
    stores = CountedClaims(None)
    await stores.start()
    await stores.create_store(US, a_store())
    await add(stores, files, "a", "hello")
    assert (await index_all(stores, files)).status == "completed"
    assert stores.extended == extended
    await stores.aclose()


async def test_embeddings_that_fail_are_retried(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    await add(stores, files, "a", "hello")
    assert (await index_all(stores, files, FakeEmbeddings(failures=2))).status == "completed"
    assert len(await search(stores, "", vectors=vectors_of([1, 0]))) == 1


async def test_a_file_whose_embeddings_keep_failing_has_failed(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    await add(stores, files, "a", "hello")
    embeddings = FakeEmbeddings(failures=99)
    file = await index_all(stores, files, embeddings)
    assert len(embeddings.requests) == MAX_ATTEMPTS
    assert file.last_error is not None
    assert (file.status, file.last_error.code) == ("failed", "server_error")
    assert file.last_error.message == "No vectors now."
    assert await search(stores, "hello") == []


async def test_a_file_that_was_deleted_meanwhile_has_failed(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    await add(stores, files, "a", "hello")
    await files.delete_file(US, "file-a")
    file = await index_all(stores, files)
    assert file.last_error is not None
    assert (file.status, file.last_error.code) == ("failed", "invalid_file")


async def test_no_file_is_indexed_beyond_the_quota(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    index = IndexFiles(stores, files, PdfReader(), quota_bytes=5)
    for name in "ab":
        await add(stores, files, name, "hello")
        while await index.run_once():
            pass
    assert (await stores.get_file(US, "vs_1", "file-a")).status == "completed"
    rejected = await stores.get_file(US, "vs_1", "file-b")
    assert rejected.last_error is not None
    assert "5 bytes" in rejected.last_error.message


async def test_a_file_that_crashes_servers_is_given_up(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    await add(stores, files, "a", "hello")
    for _ in range(MAX_ATTEMPTS):  # like servers that crash while they index it
        assert await stores.claim_due_jobs(limit=1, claim_s=0)
    file = await index_all(stores, files)
    assert file.last_error is not None
    assert (file.status, file.last_error.code) == ("failed", "server_error")


class WatchedVectorStores(SqliteVectorStores):
    """Reports when a file is finished."""

    def __init__(self) -> None:
        super().__init__(None)
        self.is_finished = asyncio.Event()

    async def finish_job(self, job: IndexJob, error: IndexingError | None = None) -> bool:
        is_valid = await super().finish_job(job, error)
        self.is_finished.set()
        return is_valid


async def test_new_files_are_indexed_without_waiting(files: MemoryFileStore) -> None:
    stores = WatchedVectorStores()
    await stores.start()
    await stores.create_store(US, a_store())
    index = IndexFiles(stores, files, PdfReader())
    task = asyncio.create_task(index.run_forever())
    try:
        await asyncio.sleep(0)  # it has found nothing, and waits
        await add(stores, files, "a", "hello")
        index.wake()
        async with asyncio.timeout(3):
            await stores.is_finished.wait()
    finally:
        task.cancel()
        await asyncio.wait([task])
        await stores.aclose()


class DefectiveEmbeddings(FakeEmbeddings):
    """Raises an unexpected error for some texts."""

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if "poison" in texts[0]:
            raise ZeroDivisionError
        return await super().embed(texts)


async def test_a_file_that_causes_an_unexpected_error_harms_no_other_file(
    stores: SqliteVectorStores, files: MemoryFileStore
) -> None:
    await add(stores, files, "a", "hello")
    await add(stores, files, "b", "poison")
    assert (await index_all(stores, files, DefectiveEmbeddings())).status == "completed"
    failed = await stores.get_file(US, "vs_1", "file-b")
    assert failed.last_error is not None
    assert (failed.status, failed.last_error.code) == ("failed", "server_error")
