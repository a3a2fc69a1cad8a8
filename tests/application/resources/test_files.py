"""Uploaded files: the limit on their number."""

from __future__ import annotations

import pytest

from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.resources.files import CreateFile, FileLimits
from antiphon.domain.errors import RequestError


async def test_empty_files_are_limited_in_number() -> None:
    numbers = iter(range(9))
    store = MemoryFileStore()
    limits = FileLimits(max_bytes=10, quota_bytes=10, max_files=2)
    create = CreateFile(
        store, limits=limits, new_id=lambda prefix: f"{prefix}_{next(numbers)}", now=lambda: 0.0
    )

    async def upload(tenant: str = "t") -> str:
        file = await create(tenant, filename="empty", purpose="user_data", content=b"")
        return file.id

    first = await upload()
    await upload()
    with pytest.raises(RequestError) as refused:
        await upload()
    assert refused.value.code == "file_quota_exceeded"
    assert await upload("another")
    await store.delete_file("t", first)
    assert await upload()


async def test_the_files_of_all_tenants_are_limited_together() -> None:
    numbers = iter(range(9))
    limits = FileLimits(max_bytes=10, quota_bytes=10, total_bytes=15)
    create = CreateFile(
        MemoryFileStore(),
        limits=limits,
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        now=lambda: 0.0,
    )
    for tenant, size in (("a", 10), ("b", 5)):
        await create(tenant, filename="f", purpose="user_data", content=b"x" * size)
    with pytest.raises(RequestError, match="all tenants") as refused:
        await create("c", filename="f", purpose="user_data", content=b"x")
    assert refused.value.code == "file_quota_exceeded"
