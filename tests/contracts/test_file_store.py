"""Every file store keeps its promises; the folder keeps files over a restart, and nothing else."""

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


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_files_outlive_the_server(folder: FolderFileStore, tmp_path: Path) -> None:
    await folder.add(US, a_file(), CONTENT)
    again = FolderFileStore(tmp_path / "files")
    await again.start()
    assert await again.list_all(US) == [a_file()]
    assert await again.content(US, a_file().id) == CONTENT


async def test_nothing_stays_of_a_deleted_file(folder: FolderFileStore, tmp_path: Path) -> None:
    await folder.add(US, a_file(), CONTENT)
    assert kept(tmp_path)
    await folder.delete(US, a_file().id)
    assert kept(tmp_path) == []


async def test_only_the_servers_user_may_read_files(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.add(US, a_file(), CONTENT)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in kept(tmp_path)}
    assert modes == {0o600}


async def test_what_a_killed_server_left_is_no_file_and_is_swept(
    folder: FolderFileStore, tmp_path: Path
) -> None:
    await folder.add(US, a_file(), CONTENT)
    [whole] = [path for path in kept(tmp_path) if path.suffix != ".json"]
    half, recent = whole.with_name("file-half"), whole.with_name("file-recent")
    for path in (half, recent):
        path.write_bytes(b"half")
    os.utime(half, (0, 0))
    with pytest.raises(NotFound):
        await folder.content(US, "file-half")
    await FolderFileStore(tmp_path / "files").start()
    assert not half.exists()
    assert recent.exists()  # another server may be writing it
    assert await folder.content(US, a_file().id) == CONTENT


async def test_a_folder_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
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
