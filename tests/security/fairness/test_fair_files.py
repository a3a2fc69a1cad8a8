"""Uploads, lists and reads of one tenant do not keep another waiting."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.adapters.stores.files.store import FolderFileStore
from antiphon.application.ports import FilePageQuery, FileUsage
from antiphon.application.support.fair_threads import FairThreads
from antiphon.testing.file_store import a_file

LIMIT_S = 30.0
READS = 40


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[FolderFileStore]:
    files = FolderFileStore(tmp_path / "files")
    await files.start()
    yield files
    await files.aclose()


async def test_a_disk_that_hangs_for_one_tenant_leaves_threads_to_the_others(
    files: FolderFileStore, tmp_path: Path
) -> None:
    await files.create_file("greedy", a_file(1), b"content")
    [content] = [path for path in tmp_path.glob("files/*/*") if path.suffix != ".json"]  # noqa: ASYNC240
    content.unlink()
    os.mkfifo(content)  # reading it hangs until somebody writes
    reads = [asyncio.create_task(files.get_content("greedy", a_file(1).id)) for _ in range(READS)]
    try:
        async with asyncio.timeout(LIMIT_S):
            await files.create_file(
                "other", a_file(2), b"hello", limit=FileUsage(files=9, bytes=9999)
            )
            assert await files.get_content("other", a_file(2).id) == b"hello"
            assert await files.list_files("other", FilePageQuery(limit=9)) == [a_file(2)]
            await files.delete_file("other", a_file(2).id)
            assert not any(read.done() for read in reads)
    finally:
        while not all(read.done() for read in reads):
            await asyncio.to_thread(lambda: os.close(os.open(content, os.O_RDWR)))
            await asyncio.sleep(0)
    assert {read.result() for read in reads} == {b""}


async def test_a_cancelled_caller_does_not_free_its_thread() -> None:
    threads = FairThreads(2, per_tenant=1, name="test")
    reader, writer = os.pipe()
    first = asyncio.create_task(threads.run("greedy", os.read, reader, 1))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(threads.run("greedy", os.getpid))
    async with asyncio.timeout(LIMIT_S):
        assert await threads.run("other", os.getpid) == os.getpid()
        assert not second.done()
        os.write(writer, b"x")
        assert await second == os.getpid()
    os.close(reader)
    os.close(writer)
