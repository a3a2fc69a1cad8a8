"""Vectors from an embedding engine, and its invalid answers."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import AsyncIterator, Iterator

import pytest

from antiphon.adapters.embeddings import HttpEmbeddings
from antiphon.domain.errors import EmbeddingsError, SettingsError

from .fake_embeddings import FakeEmbeddings, embedding


@pytest.fixture
def engine() -> Iterator[FakeEmbeddings]:
    with embedding() as fake:
        yield fake


@pytest.fixture
async def embeddings(engine: FakeEmbeddings) -> AsyncIterator[HttpEmbeddings]:
    embeddings = HttpEmbeddings(engine.url, model="small", api_key="secret", timeout_s=2)
    await embeddings.start()
    yield embeddings
    await embeddings.aclose()


async def test_each_text_has_a_vector_of_length_one(
    embeddings: HttpEmbeddings, engine: FakeEmbeddings
) -> None:
    vectors = await embeddings.embed(["a dog", "a car"])
    assert vectors.model == "small"
    first, second = (array("f", each) for each in vectors.each)
    assert math.hypot(*first) == pytest.approx(1, abs=1e-6)
    assert (first.index(max(first)), second.index(max(second))) == (1, 2)
    path, body = engine.asked[-1]
    assert path == "/v1/embeddings"
    assert body == {"model": "small", "input": ["a dog", "a car"], "encoding_format": "float"}
    assert engine.keys[-1] == "Bearer secret"


def body_with(*vectors: object) -> bytes:
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return json.dumps({"data": data}).encode()


INVALID = {
    "an error": (500, b"oops"),
    "a redirect": (307, b""),
    "not JSON": (200, b"<html>"),
    "another shape": (200, b'{"vectors": []}'),
    "too few": (200, body_with([1.0])),
    "too many": (200, body_with([1.0], [1.0], [1.0])),
    "two dimensions": (200, body_with([1.0], [1.0, 2.0])),
    "length zero": (200, body_with([0.0], [0.0])),
    "empty": (200, body_with([], [])),
    "text": (200, body_with("a", "b")),
}


@pytest.mark.parametrize("answer", INVALID.values(), ids=INVALID)
async def test_every_invalid_answer_is_the_same_error(
    embeddings: HttpEmbeddings, engine: FakeEmbeddings, answer: tuple[int, bytes]
) -> None:
    engine.answer = answer
    with pytest.raises(EmbeddingsError) as raised:
        await embeddings.embed(["a", "b"])
    assert "127.0.0.1" not in str(raised.value)


async def test_an_answer_that_is_too_large_is_an_error(engine: FakeEmbeddings) -> None:
    engine.answer = (200, b" " * 10_000 + body_with([1.0], [1.0]))
    bounded = HttpEmbeddings(engine.url, model="small", max_bytes=1000)
    with pytest.raises(EmbeddingsError):
        await bounded.embed(["a", "b"])
    await bounded.aclose()


async def test_the_server_does_not_start_without_its_embedding_engine() -> None:
    unreachable = HttpEmbeddings("http://127.0.0.1:1/v1", model="small", timeout_s=2)
    with pytest.raises(SettingsError, match="127.0.0.1:1/v1/embeddings"):
        await unreachable.start()
    await unreachable.aclose()
