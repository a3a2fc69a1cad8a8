"""Every file store passes the contract; the folder keeps files across restarts, nothing else."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.adapters.stores.files.store import FolderFileStore, MemoryFileStore
from antiphon.application.ports import FileStore, FileUsage
from antiphon.domain.errors import FilesFull, NotFound, SettingsError, StoreError
from antiphon.testing.file_store import CONTENT, US, FileStoreContract, a_file

STORES: Mapping[str, Callable[[Path], FileStore]] = {
    "memory": lambda _: MemoryFileStore(),
    "folder": lambda folder: FolderFileStore(folder / "files"),
}


class TestFileStore(FileStoreContract):
    @pytest.fixture(params=STORES)
    async def files(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[FileStore]:
        store = STORES[request.param](tmp_path)
        await store.start()
        yield store
        await store.aclose()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[FolderFileStore]:
    store = FolderFileStore(tmp_path / "files")
    await store.start()
    yield store
    await store.aclose()


@asynccontextmanager
async def another(tmp_path: Path) -> AsyncIterator[FolderFileStore]:
    """Yield the store of another server on the same folder."""
    store = FolderFileStore(tmp_path / "files")
    await store.start()
    yield store
    await store.aclose()


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_files_outlive_the_server(folder: FolderFileStore, tmp_path: Path) -> None:
    await folder.create_file(US, a_file(), CONTENT)
    async with another(tmp_path) as again:
        assert await again.list_all_files(US) == [a_file()]
        assert await again.get_content(US, a_file().id) == CONTENT


async def test_a_deleted_file_leaves_nothing_behind(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.create_file(US, a_file(filename="the-owl-flies.txt"), CONTENT)
    assert files_in(tmp_path / "files")
    await folder.delete_file(US, a_file().id)
    assert files_in(tmp_path / "files") == []
    await folder.aclose()  # the index wipes its log right after the deletion, or now
    assert not any(b"owl" in path.read_bytes() for path in files_in(tmp_path))


async def test_only_the_servers_user_may_read_files(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.create_file(US, a_file(), CONTENT)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files_in(tmp_path)}
    assert modes == {0o600}


async def test_a_half_written_file_of_a_killed_server_does_not_exist_and_is_swept(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.create_file(US, a_file(), CONTENT)
    [complete] = [path for path in files_in(tmp_path / "files") if path.suffix != ".json"]
    half, recent = complete.with_name("file-half"), complete.with_name("file-recent")
    for path in (half, recent):
        path.write_bytes(b"half")
    os.utime(half, (0, 0))
    with pytest.raises(NotFound):
        await folder.get_content(US, "file-half")
    async with another(tmp_path):
        assert not half.exists()
    assert recent.exists()  # another server may be writing it
    assert await folder.get_content(US, a_file().id) == CONTENT


async def test_a_server_repairs_the_index_when_it_starts(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        await folder.create_file(US, a_file(number), CONTENT)
    await folder.aclose()
    for name in ("files.db", "files.db-wal", "files.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    async with another(tmp_path) as rebuilt:
        assert await rebuilt.list_all_files(US) == [a_file(1), a_file(2), a_file(3)]
        assert await rebuilt.get_usage(US) == FileUsage(files=3, bytes=3 * len(CONTENT))
    for path in files_in(tmp_path / "files"):
        if path.name.startswith("file-0002"):
            path.unlink()
    async with another(tmp_path) as repaired:
        assert await repaired.list_all_files(US) == [a_file(1), a_file(3)]
        assert await repaired.get_usage(US) == FileUsage(files=2, bytes=2 * len(CONTENT))


async def test_two_servers_together_keep_the_limit(folder: FolderFileStore, tmp_path: Path) -> None:
    async with another(tmp_path) as other:
        limit = FileUsage(files=5, bytes=10**6)
        results = await asyncio.gather(
            *(
                (folder, other)[number % 2].create_file(US, a_file(number), CONTENT, limit=limit)
                for number in range(20)
            ),
            return_exceptions=True,
        )
        assert [type(result) for result in results].count(FilesFull) == 15
        assert len(await other.list_all_files(US)) == 5
    assert len([path for path in files_in(tmp_path / "files") if path.suffix == ".json"]) == 5


async def test_an_unusable_folder_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("not a folder")
    with pytest.raises(SettingsError, match="files"):
        await FolderFileStore(tmp_path / "files").start()


async def test_a_folder_that_fails_later_is_a_store_error(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    (tmp_path / "files").rmdir()
    (tmp_path / "files").write_text("not a folder")
    with pytest.raises(StoreError):
        await folder.create_file(US, a_file(), CONTENT)
    with pytest.raises(StoreError):
        await folder.get_file(US, a_file().id)
