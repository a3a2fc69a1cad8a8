"""Vector stores that are searched by meaning too, and an embedding engine that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.adapters.fake_embeddings import FakeEmbeddings, embedding
from tests.http.conftest import create, script, text_of

pytestmark = pytest.mark.slow

TEXTS = {"pets.txt": "How to feed a puppy.", "roads.txt": "Where an automobile may stop."}


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEmbeddings]:
    with embedding() as fake:
        yield fake


@pytest.fixture(scope="module")
def meaning(
    serve_from: Any, engine: FakeEmbeddings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    given = {"embeddings.url": engine.url, "embeddings.model": "small"}
    with serve_from(tmp_path_factory.mktemp("meaning"), **given) as served:
        yield served


@pytest.fixture
def client(meaning: Any, engine: FakeEmbeddings) -> Iterator[OpenAI]:
    engine.answer = None
    with OpenAI(base_url=meaning.api, api_key="none", max_retries=0, timeout=10) as official:
        yield official


def filled(client: OpenAI) -> str:
    store = client.vector_stores.create()
    batch = client.vector_stores.file_batches.upload_and_poll(
        store.id,
        files=[(name, text.encode()) for name, text in TEXTS.items()],
        poll_interval_ms=10,
    )
    assert batch.status == "completed"
    return store.id


def names(client: OpenAI, store_id: str, query: str, **given: Any) -> list[str]:
    return [found.filename for found in client.vector_stores.search(store_id, query=query, **given)]


def weighted(embeddings: float, text: float) -> Any:
    return {"hybrid_search": {"embedding_weight": embeddings, "text_weight": text}}


def test_a_search_finds_passages_by_meaning(client: OpenAI) -> None:
    store_id = filled(client)
    assert names(client, store_id, "dog?")[0] == "pets.txt"
    assert names(client, store_id, "Where is the dog")[0] == "pets.txt"
    by_words = weighted(0, 1)
    assert names(client, store_id, "dog?", ranking_options=by_words, max_num_results=1) == []
    assert names(client, store_id, "Where?", ranking_options=by_words) == ["roads.txt"]


def test_a_search_that_cannot_be_told_the_meaning_fails(
    client: OpenAI, engine: FakeEmbeddings
) -> None:
    store_id = filled(client)
    engine.answer = (500, b"")
    with pytest.raises(openai.InternalServerError) as failed:
        client.vector_stores.search(store_id, query="dog")
    assert failed.value.status_code == 503
    assert failed.value.code == "embeddings_unavailable"
    assert names(client, store_id, "puppy", ranking_options=weighted(0, 1)) == ["pets.txt"]


def test_the_model_is_told_that_the_search_failed(
    meaning: Any, client: OpenAI, engine: FakeEmbeddings, model: str
) -> None:
    store_id = filled(client)
    engine.answer = (500, b"")
    asked = script({"call": "file_search", "args": {"queries": ["dog"]}}, {"say": "Later."})
    with httpx.Client(base_url=meaning.api, timeout=10) as http:
        response = create(
            http,
            model=model,
            input=asked,
            tools=[{"type": "file_search", "vector_store_ids": [store_id]}],
            include=["file_search_call.results"],
        )
    call = response["output"][0]
    assert (call["status"], call["queries"]) == ("failed", ["dog"])
    assert "embedding" in call["results"][0]["text"]
    assert (response["status"], text_of(response)) == ("completed", "Later.")


def test_a_file_that_was_not_indexed_yet_is_after_a_restart(
    serve: Any, tmp_path: Path, engine: FakeEmbeddings
) -> None:
    engine.answer = None
    given = {"store": "sqlite", "embeddings.url": engine.url}
    with serve(**given) as first, OpenAI(base_url=first.api, api_key="none") as client:
        engine.answer = (500, b"")
        store = client.vector_stores.create()
        file = client.vector_stores.files.upload(vector_store_id=store.id, file=("a.txt", b"dog"))
        assert file.status == "in_progress"
    engine.answer = None
    with serve(**given) as second, OpenAI(base_url=second.api, api_key="none") as client:
        done = client.vector_stores.files.poll(
            file.id, vector_store_id=store.id, poll_interval_ms=10
        )
        assert done.status == "completed"
        assert names(client, store.id, "puppy") == ["a.txt"]
