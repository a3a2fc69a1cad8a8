"""Vector stores pass the contract in memory and in a file, which outlives the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.application.ports import VectorStores
from antiphon.domain.errors import SettingsError
from antiphon.testing.vector_stores import (
    CLAIM_S,
    US,
    VectorStoresContract,
    a_file,
    a_store,
    index_file,
    search,
    texts_of,
    vectors_of,
)

STORES: Mapping[str, Callable[[Path], VectorStores]] = {
    "memory": lambda _: SqliteVectorStores(None),
    "file": lambda folder: SqliteVectorStores(folder / "vectors.db"),
}


class TestVectorStores(VectorStoresContract):
    @pytest.fixture(params=STORES)
    async def stores(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[VectorStores]:
        stores = STORES[request.param](tmp_path)
        await stores.start()
        yield stores
        await stores.aclose()


async def test_vector_stores_and_their_pending_jobs_outlive_the_server(tmp_path: Path) -> None:
    stores = SqliteVectorStores(tmp_path / "vectors.db")
    await stores.start()
    await stores.create_store(US, a_store())
    await index_file(stores, "a", "hello", meaning=vectors_of([1, 0]))
    await stores.create_files(US, "vs_1", [a_file("b")])
    [job] = await stores.claim_due_jobs(limit=5, claim_s=CLAIM_S)
    await stores.aclose()
    again = SqliteVectorStores(tmp_path / "vectors.db")
    await again.start()
    assert texts_of(await search(again, "hello")) == ["hello"]
    [same] = await again.claim_due_jobs(limit=5, claim_s=CLAIM_S)
    assert (same.file_id, same.attempt) == (job.file_id, 2)
    await again.aclose()


async def test_servers_that_share_the_folder_share_vector_stores(tmp_path: Path) -> None:
    ours, theirs = (SqliteVectorStores(tmp_path / "vectors.db") for _ in range(2))
    await ours.start()
    await theirs.start()
    await ours.create_store(US, a_store())
    await index_file(ours, "a", "hello")
    assert texts_of(await search(theirs, "hello")) == ["hello"]
    await ours.create_files(US, "vs_1", [a_file(f"{number}") for number in range(8)])
    asked = await asyncio.gather(
        *(
            stores.claim_due_jobs(limit=3, claim_s=CLAIM_S)
            for stores in (ours, theirs)
            for _ in range(3)
        )
    )
    assert len({job.file_id for jobs in asked for job in jobs}) == sum(map(len, asked)) == 8
    await theirs.aclose()
    await ours.aclose()


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_erased_content_leaves_no_byte_behind(tmp_path: Path) -> None:
    stores = SqliteVectorStores(tmp_path / "vectors.db")
    await stores.start()
    await stores.create_store(US, a_store())
    await index_file(stores, "a", "the secretword of the secretkeeper")
    assert b"secret" in all_bytes(tmp_path)
    await stores.delete_file(US, "vs_1", "file-a")
    while await stores.sweep(0, limit=100):
        pass
    await stores.aclose()
    assert b"secret" not in all_bytes(tmp_path)
    assert b"vs_1" in all_bytes(tmp_path)


async def test_a_file_that_is_not_a_database_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "vectors.db").write_bytes(b"something else" * 100)
    with pytest.raises(SettingsError, match="vectors.db"):
        await SqliteVectorStores(tmp_path / "vectors.db").start()
