"""Every file store passes the contract; the folder keeps files across restarts, nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from antiphon.adapters.stores.files import FolderFileStore, MemoryFileStore
from antiphon.application.ports import FileStore
from antiphon.domain.errors import NotFound, SettingsError, StoreError
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
async def folder(tmp_path: Path) -> FolderFileStore:
    store = FolderFileStore(tmp_path / "files")
    await store.start()
    return store


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_files_outlive_the_server(folder: FolderFileStore, tmp_path: Path) -> None:
    await folder.add(US, a_file(), CONTENT)
    again = FolderFileStore(tmp_path / "files")
    await again.start()
    assert await again.list_all(US) == [a_file()]
    assert await again.content(US, a_file().id) == CONTENT


async def test_a_deleted_file_leaves_nothing_behind(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.add(US, a_file(), CONTENT)
    assert files_in(tmp_path)
    await folder.delete(US, a_file().id)
    assert files_in(tmp_path) == []


async def test_only_the_servers_user_may_read_files(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.add(US, a_file(), CONTENT)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in files_in(tmp_path)}
    assert modes == {0o600}


async def test_a_half_written_file_of_a_killed_server_does_not_exist_and_is_swept(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.add(US, a_file(), CONTENT)
    [complete] = [path for path in files_in(tmp_path) if path.suffix != ".json"]
    half, recent = complete.with_name("file-half"), complete.with_name("file-recent")
    for path in (half, recent):
        path.write_bytes(b"half")
    os.utime(half, (0, 0))
    with pytest.raises(NotFound):
        await folder.content(US, "file-half")
    await FolderFileStore(tmp_path / "files").start()
    assert not half.exists()
    assert recent.exists()  # another server may be writing it
    assert await folder.content(US, a_file().id) == CONTENT


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
        await folder.add(US, a_file(), CONTENT)
    with pytest.raises(StoreError):
        await folder.get(US, a_file().id)
