"""Files that another default would show are named when the server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.stores.files.store import FolderFileStore
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.stores import hidden_places
from antiphon.testing.file_store import CONTENT, US, a_file
from antiphon.testing.vector_stores import a_store

POSTGRES = "postgresql://db/test"


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A data folder that a server on SQLite has used."""
    files = FolderFileStore(tmp_path / "files")
    vector_stores = SqliteVectorStores(tmp_path / "vector_stores.db")
    for started in (files, vector_stores):
        await started.start()
    await files.create_file(US, a_file(), CONTENT)
    await vector_stores.create_store(US, a_store())
    for started in (files, vector_stores):
        await started.aclose()
    return tmp_path


async def test_files_and_vector_stores_that_are_left_behind_are_named(folder: Path) -> None:
    files, vector_stores = hidden_places(Settings(store=POSTGRES, data_dir=folder))
    assert f"{str(folder / 'files')!r} has uploaded files that are not shown" in files
    assert f"{str(folder / 'vector_stores.db')!r} has vector stores" in vector_stores


@pytest.mark.parametrize(
    "chosen",
    [
        {"store": "sqlite"},
        {"store": "memory"},
        {"store": POSTGRES, "file_store": "postgres", "vector_stores": "postgres"},
    ],
)
async def test_what_is_shown_or_was_chosen_is_not(folder: Path, chosen: dict[str, Any]) -> None:
    assert list(hidden_places(Settings(**chosen, data_dir=folder))) == []


async def test_a_folder_that_has_nothing_is_not(tmp_path: Path) -> None:
    vector_stores = SqliteVectorStores(tmp_path / "vector_stores.db")
    await vector_stores.start()
    await vector_stores.aclose()
    (tmp_path / "files").mkdir()
    assert list(hidden_places(Settings(store=POSTGRES, data_dir=tmp_path))) == []
