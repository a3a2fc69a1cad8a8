"""Contract tests for the port `FileStore`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.application.ports import FilePageQuery, FileStore, FileUsage, StoredFile
from antiphon.domain.errors import FilesFull, NotFound

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
        await files.create_file(US, a_file(), CONTENT)
        assert await files.get_file(US, a_file().id) == a_file()
        assert await files.get_content(US, a_file().id) == CONTENT
        assert await files.list_all_files(US) == [a_file()]

    async def test_content_can_be_read_in_pieces(self, files: FileStore) -> None:
        long = CONTENT * 1000
        await files.create_file(US, a_file(bytes=len(long)), long)
        assert b"".join([piece async for piece in files.stream_content(US, a_file().id)]) == long
        for tenant, file_id in ((THEM, a_file().id), (US, "file-9")):
            with pytest.raises(NotFound):
                await anext(files.stream_content(tenant, file_id))

    async def test_an_empty_file_is_a_file(self, files: FileStore) -> None:
        await files.create_file(US, a_file(bytes=0), b"")
        assert await files.get_content(US, a_file().id) == b""

    async def test_files_are_listed_oldest_first(self, files: FileStore) -> None:
        for number in (1, 2, 3):
            await files.create_file(US, a_file(number), CONTENT)
        assert [file.id for file in await files.list_all_files(US)] == [
            "file-0001",
            "file-0002",
            "file-0003",
        ]

    async def test_a_deleted_file_is_unknown(self, files: FileStore) -> None:
        await files.create_file(US, a_file(1), CONTENT)
        await files.create_file(US, a_file(2), CONTENT)
        await files.delete_file(US, a_file(1).id)
        await self._is_unknown(files, US, a_file(1).id)
        assert await files.list_all_files(US) == [a_file(2)]

    async def test_another_tenants_file_is_unknown(self, files: FileStore) -> None:
        await files.create_file(US, a_file(), CONTENT)
        await self._is_unknown(files, THEM, a_file().id)
        assert await files.list_all_files(THEM) == []
        assert await files.get_content(US, a_file().id) == CONTENT

    @pytest.mark.parametrize(
        "file_id",
        ["file-9", "", ".", "..", "../us/file-0001", "file-0001.json", "a/b", "a\0b", "x" * 5000],
    )
    async def test_an_id_that_was_never_used_is_unknown(
        self, files: FileStore, file_id: str
    ) -> None:
        await files.create_file(US, a_file(), CONTENT)
        await self._is_unknown(files, US, file_id)

    async def test_pages_follow_each_other(self, files: FileStore) -> None:
        for number in (1, 2, 3, 4):
            purpose = "vision" if number == 2 else "user_data"
            await files.create_file(US, a_file(number, purpose=purpose), CONTENT)

        async def page(**query: Any) -> list[str]:
            found = await files.list_files(US, FilePageQuery(**{"limit": 2, **query}))
            return [file.id.removeprefix("file-000") for file in found]

        assert await page() == ["1", "2"]
        assert await page(after="file-0002") == ["3", "4"]
        assert await page(after="file-0004") == []
        assert await page(is_descending=True) == ["4", "3"]
        assert await page(is_descending=True, after="file-0003") == ["2", "1"]
        assert await page(purpose="user_data", after="file-0001") == ["3", "4"]
        for wrong in ({"after": "file-9"}, {"after": "file-0002", "purpose": "user_data"}):
            with pytest.raises(NotFound):
                await page(**wrong)

    async def test_pages_split_files_of_the_same_second_too(self, files: FileStore) -> None:
        for number in (2, 3, 1):
            await files.create_file(US, a_file(number, created_at=0), CONTENT)
        for is_descending in (False, True):
            query = FilePageQuery(limit=1, is_descending=is_descending)
            first = await files.list_files(US, query)
            rest = await files.list_files(US, replace(query, limit=9, after=first[0].id))
            pages = [*first, *rest]
            assert (pages[::-1] if is_descending else pages) == await files.list_all_files(US)

    async def test_the_limit_is_exact_however_many_files_are_added_at_once(
        self, files: FileStore
    ) -> None:
        before = await files.get_total_bytes()
        for tenant, limit in (
            (US, FileUsage(files=3, bytes=10**9)),
            (THEM, FileUsage(files=10**9, bytes=3 * len(CONTENT))),
        ):
            added = await asyncio.gather(
                *(files.create_file(tenant, a_file(n), CONTENT, limit=limit) for n in range(10)),
                return_exceptions=True,
            )
            assert [type(each) for each in added].count(FilesFull) == 7
            assert await files.get_usage(tenant) == FileUsage(files=3, bytes=3 * len(CONTENT))
        assert await files.get_total_bytes() == before + 6 * len(CONTENT)
        stored = await files.list_all_files(US)
        await files.delete_file(US, stored[0].id)
        await files.create_file(US, a_file(11), CONTENT, limit=FileUsage(files=3, bytes=10**9))
        with pytest.raises(FilesFull) as full:
            await files.create_file(US, a_file(12), CONTENT, limit=FileUsage(files=3, bytes=10**9))
        assert (full.value.files, full.value.used_bytes) == (3, 3 * len(CONTENT))

    async def test_files_added_at_the_same_time_are_all_kept(self, files: FileStore) -> None:
        many = [a_file(number) for number in range(20)]
        await asyncio.gather(*(files.create_file(US, file, CONTENT) for file in many))
        assert await files.list_all_files(US) == many

    async def _is_unknown(self, files: FileStore, tenant: str, file_id: str) -> None:
        for method in (files.get_file, files.get_content, files.delete_file):
            with pytest.raises(NotFound):
                await method(tenant, file_id)
