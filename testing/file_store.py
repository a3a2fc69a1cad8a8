"""What every FileStore must do."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.application.ports import FileStore, StoredFile
from antiphon.domain.errors import NotFound

US, THEM = "us", "them/../us"
CONTENT = bytes(range(256)) * 3


def a_file(number: int = 1, **fields: object) -> StoredFile:
    defaults: dict[str, object] = {
        "id": f"file-{number:04}",
        "filename": "../ünlucky\u2028 🍀.txt",
        "purpose": "user_data",
        "bytes": len(CONTENT),
        "created_at": 1_790_000_000 + number,
    }
    return StoredFile(**(defaults | fields))  # type: ignore[arg-type]


@pytest.mark.asyncio
class FileStoreContract:
    """Subclass it where pytest collects tests.

    class TestMyFiles(FileStoreContract):
        @pytest_asyncio.fixture
        async def files(self, tmp_path):
            files = MyFiles(tmp_path / "files")
            await files.start()
            yield files
            await files.aclose()
    """

    @pytest.fixture
    def files(self) -> FileStore:
        raise NotImplementedError("override this fixture: return an empty file store, started")

    async def test_an_added_file_is_read_unchanged(self, files: FileStore) -> None:
        await files.add(US, a_file(), CONTENT)
        assert await files.get(US, a_file().id) == a_file()
        assert await files.content(US, a_file().id) == CONTENT
        assert await files.list_all(US) == [a_file()]

    async def test_content_can_be_read_in_pieces(self, files: FileStore) -> None:
        long = CONTENT * 1000
        await files.add(US, a_file(bytes=len(long)), long)
        assert b"".join([piece async for piece in files.pieces(US, a_file().id)]) == long
        for tenant, file_id in ((THEM, a_file().id), (US, "file-9")):
            with pytest.raises(NotFound):
                await anext(files.pieces(tenant, file_id))

    async def test_an_empty_file_is_a_file(self, files: FileStore) -> None:
        await files.add(US, a_file(bytes=0), b"")
        assert await files.content(US, a_file().id) == b""

    async def test_files_are_listed_oldest_first(self, files: FileStore) -> None:
        for number in (1, 2, 3):
            await files.add(US, a_file(number), CONTENT)
        assert [file.id for file in await files.list_all(US)] == [
            "file-0001",
            "file-0002",
            "file-0003",
        ]

    async def test_a_deleted_file_is_unknown(self, files: FileStore) -> None:
        await files.add(US, a_file(1), CONTENT)
        await files.add(US, a_file(2), CONTENT)
        await files.delete(US, a_file(1).id)
        await self._is_unknown(files, US, a_file(1).id)
        assert await files.list_all(US) == [a_file(2)]

    async def test_another_tenants_file_is_unknown(self, files: FileStore) -> None:
        await files.add(US, a_file(), CONTENT)
        await self._is_unknown(files, THEM, a_file().id)
        assert await files.list_all(THEM) == []
        assert await files.content(US, a_file().id) == CONTENT

    @pytest.mark.parametrize(
        "file_id",
        ["file-9", "", ".", "..", "../us/file-0001", "file-0001.json", "a/b", "a\0b", "x" * 5000],
    )
    async def test_an_id_that_was_never_used_is_unknown(
        self, files: FileStore, file_id: str
    ) -> None:
        await files.add(US, a_file(), CONTENT)
        await self._is_unknown(files, US, file_id)

    async def test_files_added_at_the_same_time_are_all_kept(self, files: FileStore) -> None:
        many = [a_file(number) for number in range(20)]
        await asyncio.gather(*(files.add(US, file, CONTENT) for file in many))
        assert await files.list_all(US) == many

    async def _is_unknown(self, files: FileStore, tenant: str, file_id: str) -> None:
        for method in (files.get, files.content, files.delete):
            with pytest.raises(NotFound):
                await method(tenant, file_id)
