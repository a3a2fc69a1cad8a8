"""Measure vector stores: indexing, searching, and how long they block the event loop.

python -m benchmarks.file_search [FILES]
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.application.ports import FileToAdd, StoredFile
from antiphon.application.resources.indexing import IndexFiles
from antiphon.domain.retrieval.vector_stores import ChunkSizes, VectorStore

TENANT = "bench"
WORDS_A_FILE = 4000
VOCABULARY = 20_000
SEARCHES = 20


def texts(count: int) -> list[str]:
    """Texts whose words are as unevenly frequent as those of a language."""
    chance = random.Random(1)
    words = [
        "".join(chance.choice("abcdefghijklmnop") for _ in range(chance.randint(3, 9)))
        for _ in range(VOCABULARY)
    ]
    frequencies = [1 / rank for rank in range(1, VOCABULARY + 1)]
    return [" ".join(chance.choices(words, frequencies, k=WORDS_A_FILE)) for _ in range(count)]


@asynccontextmanager
async def watched(what: str) -> AsyncGenerator[None]:
    """Print how long the block took, and the longest that the event loop stood still."""
    stalls: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            stalls.append(time.perf_counter() - begun - 0.001)

    watching = asyncio.create_task(watch())
    begun = time.perf_counter()
    yield
    took = time.perf_counter() - begun
    watching.cancel()
    stalls.sort()
    p99 = stalls[int(len(stalls) * 0.99)] if stalls else 0.0
    longest = stalls[-1] if stalls else 0.0
    print(
        f"{what:38} {took:8.3f} s   stall p99 {p99 * 1e3:5.1f} ms, longest {longest * 1e3:5.1f} ms"
    )


async def main(count: int) -> None:
    some = texts(count)
    files = MemoryFileStore()
    with tempfile.TemporaryDirectory() as folder:
        stores = SqliteVectorStores(Path(folder) / "vector_stores.db")
        await stores.start()
        store = VectorStore(id="vs_1", created_at=0, last_active_at=0, name="")
        await stores.create_store(TENANT, store)
        added = []
        for number, text in enumerate(some):
            content = text.encode()
            file = StoredFile(
                id=f"file-{number}",
                filename=f"{number}.txt",
                purpose="user_data",
                bytes=len(content),
                created_at=0,
            )
            await files.create_file(TENANT, file, content)
            added.append(
                FileToAdd(
                    id=file.id,
                    filename=file.filename,
                    created_at=0,
                    attributes={},
                    sizes=ChunkSizes(),
                )
            )
        await stores.create_files(TENANT, "vs_1", added)
        index = IndexFiles(stores, files, PdfReader())
        async with watched(f"index {count} files, {WORDS_A_FILE} words each"):
            while await index.run_once():
                pass
        words = some[0].split()
        rare = " ".join(sorted(set(words), key=words.count)[:3])
        often = " ".join(sorted(set(words), key=words.count)[-3:])
        for what, query in (("three rare words", rare), ("the three most frequent words", often)):
            async with watched(f"{SEARCHES} searches, {what}"):
                for _ in range(SEARCHES):
                    await stores.search(TENANT, ["vs_1"], words=query, limit=50)
        await stores.delete_store(TENANT, "vs_1")
        async with watched("erase all of it"):
            while await stores.sweep(0, limit=200):
                pass
        await stores.aclose()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
