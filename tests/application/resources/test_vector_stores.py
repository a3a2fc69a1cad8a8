"""Vector stores expire after some time without use, and are limited in number."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.application.ports import StoredFile
from antiphon.application.resources.indexing import IndexFiles
from antiphon.application.resources.vector_stores import (
    AddFiles,
    CreateStoreFile,
    CreateVectorStore,
    FindVectorStore,
    SearchVectorStores,
    SweepVectorStores,
    UpdateVectorStore,
    VectorStoreLimits,
)
from antiphon.domain.errors import RequestError
from antiphon.domain.retrieval.vector_stores import (
    DAY_S,
    ExpiresAfter,
    NewStoreFile,
    NewVectorStore,
    VectorStoreChanges,
)
from antiphon.testing.vector_stores import US, index_file

TWO_DAYS = ExpiresAfter(anchor="last_active_at", days=2)


class House:
    """The services over stores in memory; `time` is the time of their clock."""

    def __init__(self, stores: SqliteVectorStores) -> None:
        self.time = 1_790_000_000.0
        self.stores = stores
        self.files = MemoryFileStore()
        limits = VectorStoreLimits(stores=2, files=1)
        index = IndexFiles(stores, self.files, PdfReader())
        add = AddFiles(stores, self.files, index, limits=limits, now=self.now)
        self.find = FindVectorStore(stores, now=self.now)
        numbers = iter(range(9))
        self.create = CreateVectorStore(
            stores, add, limits=limits, new_id=lambda _: f"vs_{next(numbers)}", now=self.now
        )
        self.add_file = CreateStoreFile(stores, self.find, add)
        self.update = UpdateVectorStore(stores, self.find)
        self.search = SearchVectorStores(stores, None)
        self.sweep = SweepVectorStores(stores, now=self.now)

    def now(self) -> float:
        return self.time


@pytest.fixture
async def house() -> AsyncIterator[House]:
    stores = SqliteVectorStores(None)
    await stores.start()
    yield House(stores)
    await stores.aclose()


async def test_a_vector_store_that_is_not_used_expires(house: House) -> None:
    store = await house.create(US, NewVectorStore(expires_after=TWO_DAYS))
    await index_file(house.stores, "a", "hello", store_id=store.id)
    house.time += 2 * DAY_S - 1
    assert (await house.find(US, store.id)).status == "completed"
    house.time += 1
    assert (await house.find(US, store.id)).status == "expired"
    for use in (
        house.find.get_usable(US, store.id, "tools[0]"),
        house.update(US, store.id, VectorStoreChanges(name="late")),
    ):
        with pytest.raises(RequestError, match="expired"):
            await use
    await house.sweep()
    assert await house.search(US, [store.id], ["hello"]) == []
    assert (await house.find(US, store.id)).file_counts.total == 0


async def test_using_a_vector_store_postpones_its_expiry(house: House) -> None:
    store = await house.create(US, NewVectorStore(expires_after=TWO_DAYS))
    house.time += DAY_S
    await house.find.get_usable(US, store.id, "tools[0]")
    house.time += 2 * DAY_S - 1
    used = await house.find(US, store.id)
    assert (used.status, used.last_active_at) == ("completed", store.last_active_at + DAY_S)


async def test_vector_stores_and_their_files_are_limited_in_number(house: House) -> None:
    for _ in range(2):
        store = await house.create(US, NewVectorStore())
    with pytest.raises(RequestError) as refused:
        await house.create(US, NewVectorStore())
    assert refused.value.code == "vector_store_quota_exceeded"
    assert await house.create("another", NewVectorStore())
    for name in ("file-a", "file-b"):
        file = StoredFile(id=name, filename="a", purpose="evals", bytes=0, created_at=0)
        await house.files.create_file(US, file, b"hello")
    await house.add_file(US, store.id, NewStoreFile(file_id="file-a"))
    with pytest.raises(RequestError) as full:
        await house.add_file(US, store.id, NewStoreFile(file_id="file-b"))
    assert (full.value.code, full.value.param) == ("vector_store_full", "file_id")
