"""Vector stores over HTTP, by the official client: what is added is found, until it is removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

POLL_MS = 10
TEXTS = {
    "refunds.txt": "Refunds are paid within two weeks. Write to us to ask for a refund.",
    "hours.md": "# Opening hours\n\nWe are open from nine to five, not on Sundays.",
    "page.html": "<title>Snow</title><script>melt()</script><p>In winter &amp; spring.</p>",
}


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=10) as official:
        yield official


def upload(client: OpenAI, name: str, content: bytes | str) -> str:
    content = content.encode() if isinstance(content, str) else content
    return client.files.create(file=(name, content), purpose="user_data").id


def store_of(client: OpenAI, texts: dict[str, str] = TEXTS, **given: Any) -> str:
    """Create a vector store of these files, wait until it is ready, and return its id."""
    store = client.vector_stores.create(**given)
    batch = client.vector_stores.file_batches.create_and_poll(
        store.id,
        file_ids=[upload(client, name, text) for name, text in texts.items()],
        poll_interval_ms=POLL_MS,
    )
    assert batch.status == "completed", batch
    return store.id


def names(client: OpenAI, store_id: str, query: str, **given: Any) -> list[str]:
    return [found.filename for found in client.vector_stores.search(store_id, query=query, **given)]


def test_a_vector_store_is_made_changed_listed_and_deleted(client: OpenAI) -> None:
    made = client.vector_stores.create(
        name="Knowledge",
        description="of all kinds",
        metadata={"a": "b"},
        expires_after={"anchor": "last_active_at", "days": 2},
    )
    assert made.id.startswith("vs_")
    assert (made.name, made.status, made.metadata) == ("Knowledge", "completed", {"a": "b"})
    assert made.expires_at == made.last_active_at + 2 * 24 * 3600  # type: ignore[operator]
    assert made.file_counts.total == 0
    assert client.vector_stores.retrieve(made.id) == made
    changed = client.vector_stores.update(made.id, name="Other", expires_after=None)
    assert (changed.name, changed.expires_at, changed.metadata) == ("Other", None, {"a": "b"})
    second = client.vector_stores.create()
    [latest, before] = client.vector_stores.list(limit=2).data
    assert (latest.id, before.id) == (second.id, made.id)
    assert client.vector_stores.list(after=second.id, limit=1).data[0].id == made.id
    assert client.vector_stores.list(before=made.id, limit=1).data[0].id == second.id
    assert client.vector_stores.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(made.id)


def test_files_are_indexed_and_found(client: OpenAI) -> None:
    store_id = store_of(client)
    store = client.vector_stores.retrieve(store_id)
    assert (store.status, store.file_counts.completed) == ("completed", 3)
    assert store.usage_bytes > 0
    [best, *_] = client.vector_stores.search(store_id, query="When are refunds paid?").data
    assert best.filename == "refunds.txt"
    assert best.content[0].text == TEXTS["refunds.txt"]
    assert 0 < best.score <= 1
    assert names(client, store_id, "open on Sundays")[0] == "hours.md"
    assert names(client, store_id, "winter snow") == ["page.html"]
    assert names(client, store_id, "melt") == []


def test_a_new_vector_store_can_contain_files(client: OpenAI) -> None:
    file_id = upload(client, "a.txt", "hello")
    store = client.vector_stores.create(
        file_ids=[file_id, file_id],
        chunking_strategy={
            "type": "static",
            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 20},
        },
    )
    file = client.vector_stores.files.poll(
        file_id, vector_store_id=store.id, poll_interval_ms=POLL_MS
    )
    assert file.status == "completed"
    assert file.chunking_strategy.static.max_chunk_size_tokens == 100  # type: ignore[union-attr]
    assert [each.id for each in client.vector_stores.files.list(store.id)] == [file_id]


def test_a_file_is_uploaded_and_polled_in_one(client: OpenAI) -> None:
    store = client.vector_stores.create()
    file = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("note.txt", b"A note on bees."), poll_interval_ms=POLL_MS
    )
    assert file.status == "completed"
    content = client.vector_stores.files.content(file.id, vector_store_id=store.id)
    assert [part.text for part in content] == ["A note on bees."]
    batch = client.vector_stores.file_batches.upload_and_poll(
        store.id, files=[("b.txt", b"On wasps."), ("c.txt", b"On ants.")], file_ids=[file.id]
    )
    assert batch.file_counts.completed == 3
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id)
    assert len(listed.data) == 3


def test_attributes_filter_a_search(client: OpenAI) -> None:
    store = client.vector_stores.create()
    files = {year: upload(client, f"{year}.txt", f"Report of {year}") for year in (2024, 2025)}
    client.vector_stores.file_batches.create_and_poll(
        store.id,
        files=[{"file_id": each, "attributes": {"year": year}} for year, each in files.items()],
        poll_interval_ms=POLL_MS,
    )
    later: Any = {"type": "gt", "key": "year", "value": 2024}
    assert names(client, store.id, "report", filters=later) == ["2025.txt"]
    changed = client.vector_stores.files.update(
        files[2024], vector_store_id=store.id, attributes={"year": 2026, "is_new": True}
    )
    assert changed.attributes == {"year": 2026, "is_new": True}
    assert len(names(client, store.id, "report", filters=later)) == 2


def test_several_queries_are_one_search(client: OpenAI) -> None:
    store_id = store_of(client)
    found = client.vector_stores.search(store_id, query=["refund", "winter"], max_num_results=2)
    assert {each.filename for each in found} == {"refunds.txt", "page.html"}
    strict: Any = {"score_threshold": 1.0}
    assert names(client, store_id, "refund", ranking_options=strict) == []


def test_a_removed_file_is_no_longer_found(client: OpenAI) -> None:
    store_id = store_of(client)
    by_name = {
        found.filename: found.file_id
        for query in ("refund", "winter")
        for found in client.vector_stores.search(store_id, query=query)
    }
    gone = client.vector_stores.files.delete(by_name["page.html"], vector_store_id=store_id)
    assert gone.deleted
    assert names(client, store_id, "winter") == []
    assert client.files.retrieve(by_name["page.html"]).filename == "page.html"
    client.files.delete(by_name["refunds.txt"])
    assert names(client, store_id, "refund") == []
    assert client.vector_stores.retrieve(store_id).file_counts.total == 1


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.bin", b"\x00\x01\xff\xfe", "unsupported_file"),
        ("a.docx", b"PK\x03\x04\x00\x00", "unsupported_file"),
        ("a.txt", b" \n", "invalid_file"),
        ("a.pdf", b"%PDF-1.4 nothing", "invalid_file"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(
    client: OpenAI, name: str, content: bytes, code: str
) -> None:
    store = client.vector_stores.create()
    file = client.vector_stores.files.create_and_poll(
        upload(client, name, content), vector_store_id=store.id, poll_interval_ms=POLL_MS
    )
    assert file.status == "failed"
    assert file.last_error is not None
    assert file.last_error.code == code
    failed = client.vector_stores.files.list(store.id, filter="failed")
    assert [each.id for each in failed] == [file.id]
    assert client.vector_stores.files.list(store.id, filter="completed").data == []


def test_a_batch_that_is_done_can_be_cancelled_in_vain(client: OpenAI) -> None:
    store_id = client.vector_stores.create().id
    file_id = upload(client, "a.txt", "hello")
    batch = client.vector_stores.file_batches.create_and_poll(
        store_id, file_ids=[file_id], poll_interval_ms=POLL_MS
    )
    cancelled = client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store_id)
    assert cancelled.status == "cancelled"
    assert cancelled.file_counts.completed == 1


CHUNKING = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51}}
WEIGHTLESS = {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}
REFUSED = [
    ("", {"name": 5}, "name"),
    ("", {"metadata": {"a": 1}}, "metadata.a"),
    ("", {"file_ids": ["file-none"]}, "file_ids[0]"),
    ("", {"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
    ("", {"expires_after": {"anchor": "last_active_at", "days": 0}}, "expires_after.days"),
    ("", {"chunking_strategy": {"type": "magic"}}, "chunking_strategy.type"),
    ("", {"chunking_strategy": CHUNKING}, "chunking_strategy.static.chunk_overlap_tokens"),
    ("/VS/files", {}, "file_id"),
    ("/VS/files", {"file_id": "file-none"}, "file_id"),
    ("/VS/files", {"file_id": "FILE", "attributes": {"a": []}}, "attributes.a"),
    ("/VS/files", {"file_id": "FILE", "attributes": dict.fromkeys(map(str, range(17)), 1)},
     "attributes"),
    ("/VS/files", {"file_id": "FILE", "attributes": {"k" * 65: 1}}, "attributes." + "k" * 65),
    ("/VS/file_batches", {}, "file_ids"),
    ("/VS/file_batches", {"file_ids": []}, "file_ids"),
    ("/VS/file_batches", {"file_ids": ["FILE"], "files": [{"file_id": "FILE"}]}, "files"),
    ("/VS/file_batches", {"files": [{"file_id": "FILE"}, {"file_id": "x"}]}, "files[1].file_id"),
    ("/VS/search", {}, "query"),
    ("/VS/search", {"query": []}, "query"),
    ("/VS/search", {"query": "a", "max_num_results": 51}, "max_num_results"),
    ("/VS/search", {"query": "a", "filters": {"type": "eq", "key": "a"}}, "filters.value"),
    ("/VS/search", {"query": "a", "ranking_options": {"ranker": "x"}}, "ranking_options.ranker"),
    ("/VS/search", {"query": "a", "ranking_options": WEIGHTLESS}, "ranking_options.hybrid_search"),
    ("/vs_none", {"name": "a"}, "vector_store_id"),
    ("/vs_none/files", {"file_id": "FILE"}, "vector_store_id"),
    ("/vs_none/search", {"query": "a"}, "vector_store_id"),
    ("/VS/files/file-none", {"attributes": {}}, "file_id"),
    ("/VS/file_batches/vsfb_none/cancel", {}, "batch_id"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_what_is_wrong_is_named(
    client: OpenAI, http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    given = json.dumps(body)
    file_id = upload(client, "a.txt", "hello") if "FILE" in given else ""
    store_id = client.vector_stores.create().id if "VS" in path else ""
    answer = http.post(
        f"/vector_stores{path.replace('VS', store_id)}",
        content=given.replace("FILE", file_id),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param, answer.text


def test_what_has_no_effect_is_named(client: OpenAI, http: httpx.Client) -> None:
    store_id = client.vector_stores.create().id
    body = {"query": "a", "rewrite_query": True, "other": 1}
    answer = http.post(f"/vector_stores/{store_id}/search", json=body)
    assert answer.headers["x-antiphon-ignored"] == "other, rewrite_query"
