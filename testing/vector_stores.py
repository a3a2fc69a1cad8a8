"""Contract tests for the port `VectorStores`."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.application.ports import FileToAdd, IndexJob, VectorPageQuery, Vectors, VectorStores
from antiphon.domain.errors import NotFound, NotInList
from antiphon.domain.retrieval.file_filters import parse_filter
from antiphon.domain.retrieval.ranking import Passage
from antiphon.domain.retrieval.text_chunks import TextChunk
from antiphon.domain.retrieval.vector_stores import (
    ChunkSizes,
    ExpiresAfter,
    FileBatch,
    FileCounts,
    IndexingError,
    StaticChunking,
    StoreFile,
    VectorStore,
)

US, THEM = "us", "them/../us"
CLAIM_S = 600.0
SIZES = ChunkSizes(max_chunk_size_tokens=200, chunk_overlap_tokens=50)


def a_store(number: int = 1, **fields: Any) -> VectorStore:
    defaults: dict[str, Any] = {
        "id": f"vs_{number}",
        "name": "Ünlucky 🍀",
        "created_at": 1_790_000_000 + number,
        "last_active_at": 1_790_000_000 + number,
        "metadata": {"a": "b"},
    }
    return VectorStore(**(defaults | fields))


def a_file(name: str, **attributes: Any) -> FileToAdd:
    return FileToAdd(
        id=f"file-{name}",
        filename=f"{name}.txt",
        created_at=1_790_000_100,
        attributes=attributes,
        sizes=SIZES,
    )


def vectors_of(*rows: Sequence[float], model: str = "small") -> Vectors:
    return Vectors(model=model, each=[array("f", values).tobytes() for values in rows])


async def claim_job(stores: VectorStores, file_id: str) -> IndexJob:
    return next(
        job
        for job in await stores.claim_due_jobs(limit=100, claim_s=CLAIM_S)
        if job.file_id == file_id
    )


async def index_file(
    stores: VectorStores,
    name: str,
    *texts: str,
    tenant: str = US,
    store_id: str = "vs_1",
    meaning: Vectors | None = None,
    **attributes: Any,
) -> None:
    """Add a file with these chunks."""
    await stores.create_files(tenant, store_id, [a_file(name, **attributes)])
    job = await claim_job(stores, f"file-{name}")
    chunks = [TextChunk(text=text) for text in texts]
    assert await stores.add_chunks(job, chunks, meaning, first=True)
    assert await stores.finish_job(job)


async def search(
    stores: VectorStores,
    words: str,
    *,
    tenant: str = US,
    store_ids: Sequence[str] = ("vs_1",),
    limit: int = 10,
    **options: Any,
) -> list[Passage]:
    """Search the first store, and return its passages, the best by words first."""
    passages = await stores.search(tenant, store_ids, words=words, limit=limit, **options)
    return sorted(passages, key=lambda passage: (-passage.text_score, passage.id))


ReadPage = Callable[[VectorPageQuery], Awaitable[Sequence[Any]]]


async def check_pages(read: ReadPage, whole: Sequence[str]) -> None:
    """Check each page of a list that has these ids, in both orders."""

    async def page(**query: Any) -> list[str]:
        return [each.id for each in await read(VectorPageQuery(**query))]

    for is_descending in (False, True):
        ids = list(whole)[::-1] if is_descending else list(whole)
        for limit in (1, 2, len(ids), 100):
            options = {"limit": limit, "is_descending": is_descending}
            assert await page(**options) == ids[:limit]
            for place, each in enumerate(ids):
                assert await page(after=each, **options) == ids[place + 1 :][:limit]
                assert await page(before=each, **options) == ids[:place][-limit:]
                for end, last in enumerate(ids):
                    between = ids[place + 1 : end][:limit]
                    assert await page(after=each, before=last, **options) == between


async def check_is_not_in_list(read: ReadPage, other: str) -> None:
    for field in ("after", "before"):
        with pytest.raises(NotInList) as caught:
            await read(replace(VectorPageQuery(limit=2), **{field: other}))
        assert caught.value.param == field


def texts_of(passages: Sequence[Passage]) -> list[str]:
    return [passage.text for passage in passages]


@pytest.mark.asyncio
class VectorStoresContract:
    """Subclass it where pytest collects tests.

    class TestMyVectorStores(VectorStoresContract):
        @pytest_asyncio.fixture
        async def stores(self, tmp_path):
            stores = MyVectorStores(tmp_path / "vectors")
            await stores.start()
            yield stores
            await stores.aclose()
    """

    @pytest.fixture
    def stores(self) -> VectorStores:
        raise NotImplementedError("override this fixture: return empty vector stores, started")

    async def test_a_vector_store_is_read_as_it_was_created(self, stores: VectorStores) -> None:
        store = a_store(
            description="of all kinds",
            expires_after=ExpiresAfter(anchor="last_active_at", days=3),
            expires_at=1_790_300_000,
        )
        await stores.create_store(US, store)
        assert await stores.get_store(US, store.id) == store
        assert await stores.list_stores(US) == [store]

    async def test_vector_stores_are_listed_in_order_of_creation(
        self, stores: VectorStores
    ) -> None:
        for number in (2, 1, 3):
            await stores.create_store(US, a_store(number))
        assert [store.id for store in await stores.list_stores(US)] == ["vs_2", "vs_1", "vs_3"]

    async def test_vector_stores_are_listed_in_pages(self, stores: VectorStores) -> None:
        assert await stores.list_stores(US, VectorPageQuery(limit=2)) == []
        await stores.create_store(THEM, a_store(9))
        for number in (2, 1, 3, 5, 4):
            await stores.create_store(US, a_store(number))
        await stores.delete_store(US, "vs_3")
        assert await stores.count_stores(US) == 4
        await check_pages(partial(stores.list_stores, US), ["vs_2", "vs_1", "vs_5", "vs_4"])
        for other in ("vs_3", "vs_9", "vs_none"):
            await check_is_not_in_list(partial(stores.list_stores, US), other)

    async def test_an_update_leaves_the_files(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello")
        changed = a_store(name="other", metadata={}, last_active_at=1_790_000_500)
        await stores.update_store(US, changed)
        stored = await stores.get_store(US, "vs_1")
        assert (stored.name, stored.metadata, stored.last_active_at) == ("other", {}, 1_790_000_500)
        assert stored.file_counts.completed == 1

    async def test_touching_changes_only_times(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        used = a_store(name="stale", last_active_at=1_790_000_700, expires_at=1_790_000_800)
        await stores.touch_store(US, used)
        expected = a_store(last_active_at=1_790_000_700, expires_at=1_790_000_800)
        assert await stores.get_store(US, "vs_1") == expected

    async def test_the_bytes_of_a_tenant_are_counted(self, stores: VectorStores) -> None:
        for number, tenant in ((1, US), (2, US), (3, THEM)):
            await stores.create_store(tenant, a_store(number))
            await index_file(stores, "a", "hello" * number, tenant=tenant, store_id=f"vs_{number}")
        assert await stores.get_usage_bytes(US) == 15
        await stores.delete_file(US, "vs_2", "file-a")
        assert await stores.get_usage_bytes(US) == 5
        assert await stores.get_usage_bytes("nobody") == 0

    async def test_a_deleted_vector_store_is_unknown(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello")
        await stores.delete_store(US, "vs_1")
        await self._is_unknown(stores, US)
        assert await search(stores, "hello") == []

    async def test_another_tenants_vector_store_is_unknown(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello")
        await stores.create_store(THEM, a_store(2))
        await self._is_unknown(stores, THEM)
        assert await search(stores, "hello", tenant=THEM) == []
        assert [store.id for store in await stores.list_stores(THEM)] == ["vs_2"]
        await stores.delete_file_everywhere(THEM, "file-a")
        assert texts_of(await search(stores, "hello")) == ["hello"]

    async def test_files_of_other_tenants_change_no_score(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "a hello to you", "nothing else")
        [before] = await search(stores, "hello there")
        await stores.create_store(THEM, a_store(2))
        await index_file(stores, "b", *["hello there"] * 50, tenant=THEM, store_id="vs_2")
        assert await search(stores, "hello there") == [before]

    async def test_a_file_is_indexed_then_found(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await stores.create_files(US, "vs_1", [a_file("a", kind="x")])
        added = StoreFile(
            id="file-a",
            created_at=1_790_000_100,
            vector_store_id="vs_1",
            attributes={"kind": "x"},
            chunking_strategy=StaticChunking(static=SIZES),
        )
        assert await stores.list_files(US, "vs_1") == [added]
        store = await stores.get_store(US, "vs_1")
        assert (store.status, store.file_counts.in_progress) == ("in_progress", 1)
        job = await claim_job(stores, "file-a")
        assert (job.tenant, job.filename, job.sizes, job.attempt) == (US, "a.txt", SIZES, 1)
        chunks = [TextChunk(text="one two"), TextChunk(text="two three", overlap_chars=3)]
        assert await stores.add_chunks(job, chunks, None, first=True)
        assert await search(stores, "one") == []  # not before it is all there
        assert await stores.finish_job(job)
        [passage] = await search(stores, "one")
        assert (passage.file_id, passage.filename, passage.text) == ("file-a", "a.txt", "one two")
        assert passage.attributes == {"kind": "x"}
        assert await stores.get_texts(US, "vs_1", "file-a") == ["one two", " three"]
        file = await stores.get_file(US, "vs_1", "file-a")
        assert file.status == "completed"
        assert file.usage_bytes >= len("one twotwo three")
        store = await stores.get_store(US, "vs_1")
        assert (store.status, store.file_counts) == ("completed", FileCounts(completed=1, total=1))
        assert store.usage_bytes == file.usage_bytes

    async def test_a_failed_file_says_why_and_is_not_found(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await stores.create_files(US, "vs_1", [a_file("a")])
        job = await claim_job(stores, "file-a")
        await stores.add_chunks(job, [TextChunk(text="hello")], None, first=True)
        error = IndexingError(code="invalid_file", message="No text.")
        assert await stores.finish_job(job, error)
        file = await stores.get_file(US, "vs_1", "file-a")
        assert (file.status, file.last_error) == ("failed", error)
        assert await search(stores, "hello") == []
        assert (await stores.get_store(US, "vs_1")).file_counts.failed == 1

    async def test_one_of_many_callers_gets_a_job(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await stores.create_files(US, "vs_1", [a_file(f"{number}") for number in range(10)])
        claims = await asyncio.gather(
            *(stores.claim_due_jobs(limit=4, claim_s=CLAIM_S) for _ in range(5))
        )
        file_ids = [job.file_id for jobs in claims for job in jobs]
        assert sorted(file_ids) == sorted(f"file-{number}" for number in range(10))
        assert await stores.claim_due_jobs(limit=4, claim_s=CLAIM_S) == []

    async def test_tenants_take_turns_with_their_jobs(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await stores.create_files(US, "vs_1", [a_file(f"{number}") for number in range(5)])
        await stores.create_store(THEM, a_store(2))
        await stores.create_files(THEM, "vs_2", [a_file("x"), a_file("y")])
        first = await stores.claim_due_jobs(limit=3, claim_s=CLAIM_S)
        assert [job.tenant for job in first] == [US, THEM, US]
        for options, tenant in (({"skip": [US]}, THEM), ({"last": [THEM, US]}, US)):
            [job] = await stores.claim_due_jobs(limit=1, claim_s=CLAIM_S, **options)
            assert job.tenant == tenant
        assert await stores.claim_due_jobs(limit=1, claim_s=CLAIM_S, skip=[US]) == []

    async def test_a_job_is_due_again_when_its_claim_ends(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await stores.create_files(US, "vs_1", [a_file("a"), a_file("b")])
        first, claimed = await stores.claim_due_jobs(limit=2, claim_s=0)
        assert await stores.extend_claim(claimed, CLAIM_S)
        [again] = await stores.claim_due_jobs(limit=2, claim_s=CLAIM_S)
        assert (again.file_id, again.attempt) == (first.file_id, 2)

    async def test_a_later_attempt_voids_and_replaces_the_one_before(
        self, stores: VectorStores
    ) -> None:
        await stores.create_store(US, a_store())
        await stores.create_files(US, "vs_1", [a_file("a")])
        [first] = await stores.claim_due_jobs(limit=1, claim_s=0)
        await stores.add_chunks(first, [TextChunk(text="hello half")], None, first=True)
        [second] = await stores.claim_due_jobs(limit=1, claim_s=CLAIM_S)
        assert not await stores.add_chunks(first, [TextChunk(text="hello")], None, first=False)
        assert not await stores.finish_job(first)
        assert not await stores.extend_claim(first, CLAIM_S)
        await stores.add_chunks(second, [TextChunk(text="hello whole")], None, first=True)
        assert await stores.finish_job(second)
        assert texts_of(await search(stores, "hello")) == ["hello whole"]

    async def test_a_removed_file_is_unknown_and_its_job_void(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello")
        await stores.create_files(US, "vs_1", [a_file("b")])
        job = await claim_job(stores, "file-b")
        for file_id in ("file-a", "file-b"):
            await stores.delete_file(US, "vs_1", file_id)
            with pytest.raises(NotFound):
                await stores.get_file(US, "vs_1", file_id)
        assert await search(stores, "hello") == []
        assert not await stores.finish_job(job)
        assert await stores.list_files(US, "vs_1") == []

    async def test_a_forgotten_file_is_in_no_vector_store(self, stores: VectorStores) -> None:
        for number in (1, 2):
            await stores.create_store(US, a_store(number))
            await index_file(stores, "a", "hello", store_id=f"vs_{number}")
            await index_file(stores, "b", "hello you", store_id=f"vs_{number}")
        await stores.delete_file_everywhere(US, "file-a")
        passages = await search(stores, "hello", store_ids=["vs_1", "vs_2"])
        assert texts_of(passages) == ["hello you", "hello you"]

    async def test_adding_a_file_again_replaces_it(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello old")
        await index_file(stores, "a", "hello new", kind="y")
        [passage] = await search(stores, "hello")
        assert (passage.text, passage.attributes) == ("hello new", {"kind": "y"})
        assert (await stores.get_store(US, "vs_1")).file_counts.total == 1

    async def test_attributes_can_be_replaced(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello", kind="x")
        changed = await stores.update_attributes(
            US, "vs_1", "file-a", {"year": 2026, "is_new": True}
        )
        assert changed.attributes == {"year": 2026, "is_new": True}
        [passage] = await search(stores, "hello")
        assert passage.attributes == changed.attributes

    async def test_files_are_listed_in_pages(self, stores: VectorStores) -> None:
        for number in (1, 2):
            await stores.create_store(US, a_store(number))
        batch = FileBatch(id="vsfb_1", created_at=1_790_000_200, vector_store_id="vs_1")
        await index_file(stores, "done", "hello")
        await stores.create_files(US, "vs_1", [a_file(name) for name in "cab"], batch=batch)
        await stores.create_files(US, "vs_1", [a_file("d")])
        await stores.create_files(US, "vs_2", [a_file("x"), a_file("a")])
        await stores.delete_file(US, "vs_1", "file-a")
        read = partial(stores.list_files, US, "vs_1")
        await check_pages(read, ["file-done", "file-c", "file-b", "file-d"])
        await check_pages(partial(read, batch_id="vsfb_1"), ["file-c", "file-b"])
        unfinished = partial(read, status="in_progress")
        await check_pages(unfinished, ["file-c", "file-b", "file-d"])
        after_another = VectorPageQuery(limit=2, after="file-done")
        assert [file.id for file in await unfinished(after_another)] == ["file-c", "file-b"]
        for other in ("file-a", "file-x", "file-none"):
            await check_is_not_in_list(read, other)
        await check_is_not_in_list(partial(read, batch_id="vsfb_1"), "file-d")

    async def test_a_batch_has_the_status_of_its_files(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        batch = FileBatch(id="vsfb_1", created_at=1_790_000_200, vector_store_id="vs_1")
        files = [a_file(name) for name in "abc"]
        await stores.create_files(US, "vs_1", files, batch=batch)
        await stores.create_files(US, "vs_1", [a_file("d")])
        assert [file.id for file in await stores.list_files(US, "vs_1", batch_id="vsfb_1")] == [
            "file-a",
            "file-b",
            "file-c",
        ]
        jobs = await stores.claim_due_jobs(limit=10, claim_s=CLAIM_S)
        await stores.finish_job(jobs[0])
        going_on = await stores.get_batch(US, "vs_1", "vsfb_1")
        assert going_on.status == "in_progress"
        assert going_on.file_counts == FileCounts(completed=1, in_progress=2, total=3)
        cancelled = await stores.cancel_batch(US, "vs_1", "vsfb_1")
        assert cancelled.status == "cancelled"
        assert cancelled.file_counts == FileCounts(completed=1, cancelled=2, total=3)
        assert not await stores.finish_job(jobs[1])
        assert await stores.extend_claim(jobs[3], CLAIM_S)

    async def test_better_passages_score_higher(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        best = "Refunds are paid within two weeks: to ask for a refund, write to us."
        await index_file(
            stores, "a", "Opening hours and holidays.", best, "A refund of our energy."
        )
        passages = await search(stores, "refund weeks?")
        assert texts_of(passages) == [best, "A refund of our energy."]
        assert all(0 < passage.text_score <= 1 for passage in passages)
        assert passages[0].text_score > passages[1].text_score

    @pytest.mark.parametrize(
        "words",
        [
            "",
            '"',
            "AND OR NOT",
            "a*b NEAR(c)",
            "x:y^2",
            "-",
            "'",
            "_ ª ² ⁀ \U0001e900 ",
        ],
    )
    async def test_any_text_can_be_searched(self, stores: VectorStores, words: str) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello")
        assert await search(stores, words) == []

    async def test_words_in_scripts_without_spaces_are_found(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "東京タワーの高さ", "大阪城の歴史")
        assert texts_of(await search(stores, "大阪城"))[0] == "大阪城の歴史"

    async def test_a_search_returns_as_many_passages_as_requested(
        self, stores: VectorStores
    ) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", *[f"hello {'world ' * n}" for n in range(20)])
        best = texts_of(await search(stores, "hello", limit=20))
        assert len(best) == 20
        assert texts_of(await search(stores, "hello", limit=3)) == best[:3]

    async def test_only_files_that_fit_are_searched(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", "hello old", year=2020)
        await index_file(stores, "b", "hello new", year=2026)
        file_filter = parse_filter({"type": "gt", "key": "year", "value": 2024}, "filters")
        assert texts_of(await search(stores, "hello", file_filter=file_filter)) == ["hello new"]

    async def test_several_stores_are_searched_at_once(self, stores: VectorStores) -> None:
        for number in (1, 2, 3):
            await stores.create_store(US, a_store(number))
            await index_file(stores, f"{number}", f"hello {number}", store_id=f"vs_{number}")
        passages = await search(stores, "hello", store_ids=["vs_1", "vs_3", "vs_9"])
        assert sorted(texts_of(passages)) == ["hello 1", "hello 3"]

    async def test_vectors_find_passages_that_words_do_not(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        meaning = vectors_of([1, 0], [0.6, 0.8], [-1, 0])
        await index_file(stores, "a", "cats", "dogs", "bolts", meaning=meaning)
        await index_file(stores, "b", "of another model", meaning=vectors_of([1, 0], model="other"))
        passages = await search(stores, "dogs", vectors=vectors_of([1, 0]), limit=2)
        scores = {
            each.text: (each.text_score > 0, round(each.embedding_score, 3)) for each in passages
        }
        assert scores == {"cats": (False, 1.0), "dogs": (True, 0.6)}
        every = await search(stores, "bolts", vectors=vectors_of([1, 0]))
        assert {each.text: round(each.embedding_score, 3) for each in every}["bolts"] == 0.0

    async def test_removed_chunks_are_erased_in_small_steps(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store())
        await index_file(stores, "a", *[f"hello {n}" for n in range(10)])
        await index_file(stores, "b", "hello b")
        await stores.delete_file(US, "vs_1", "file-a")
        assert 0 < await stores.sweep(0, limit=4) < 10
        while await stores.sweep(0, limit=4):
            assert texts_of(await search(stores, "hello")) == ["hello b"]
        await stores.delete_store(US, "vs_1")
        while await stores.sweep(0, limit=4):
            pass
        await stores.create_store(US, a_store(2))
        await index_file(stores, "c", "hello c", store_id="vs_2")
        assert texts_of(await search(stores, "hello", store_ids=["vs_2"])) == ["hello c"]

    async def test_expired_stores_lose_their_files(self, stores: VectorStores) -> None:
        await stores.create_store(US, a_store(expires_at=1_790_000_900))
        await index_file(stores, "a", "hello")
        assert await stores.sweep(1_790_000_899, limit=100) == 0
        while await stores.sweep(1_790_000_900, limit=100):
            pass
        assert await search(stores, "hello") == []
        assert (await stores.get_store(US, "vs_1")).file_counts.total == 0

    async def _is_unknown(self, stores: VectorStores, tenant: str) -> None:
        asking = (
            stores.get_store(tenant, "vs_1"),
            stores.update_store(tenant, a_store()),
            stores.touch_store(tenant, a_store()),
            stores.delete_store(tenant, "vs_1"),
            stores.create_files(tenant, "vs_1", [a_file("x")]),
            stores.list_files(tenant, "vs_1"),
            stores.get_file(tenant, "vs_1", "file-a"),
            stores.update_attributes(tenant, "vs_1", "file-a", {}),
            stores.delete_file(tenant, "vs_1", "file-a"),
            stores.get_texts(tenant, "vs_1", "file-a"),
            stores.get_batch(tenant, "vs_1", "vsfb_1"),
            stores.cancel_batch(tenant, "vs_1", "vsfb_1"),
        )
        for each in asking:
            with pytest.raises(NotFound):
                await each
