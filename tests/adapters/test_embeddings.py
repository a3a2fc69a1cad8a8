"""Vectors from an embedding engine: what it gives, and what it may get wrong."""

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
    made = HttpEmbeddings(engine.url, "small", api_key="secret", timeout_s=2)
    await made.start()
    yield made
    await made.aclose()


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


def answered(*vectors: object) -> bytes:
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return json.dumps({"data": data}).encode()


WRONG = {
    "an error": (500, b"oops"),
    "a redirect": (307, b""),
    "no JSON": (200, b"<html>"),
    "another shape": (200, b'{"vectors": []}'),
    "too few": (200, answered([1.0])),
    "too many": (200, answered([1.0], [1.0], [1.0])),
    "of two lengths": (200, answered([1.0], [1.0, 2.0])),
    "of no length": (200, answered([0.0], [0.0])),
    "empty": (200, answered([], [])),
    "text": (200, answered("a", "b")),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
async def test_what_it_gets_wrong_is_one_error(
    embeddings: HttpEmbeddings, engine: FakeEmbeddings, answer: tuple[int, bytes]
) -> None:
    engine.answer = answer
    with pytest.raises(EmbeddingsError) as told:
        await embeddings.embed(["a", "b"])
    assert "127.0.0.1" not in str(told.value)


async def test_an_answer_without_bounds_is_not_taken_in(engine: FakeEmbeddings) -> None:
    engine.answer = (200, b" " * 10_000 + answered([1.0], [1.0]))
    bounded = HttpEmbeddings(engine.url, "small", max_bytes=1000)
    with pytest.raises(EmbeddingsError):
        await bounded.embed(["a", "b"])
    await bounded.aclose()


async def test_an_engine_that_is_not_there_stops_the_start() -> None:
    nobody = HttpEmbeddings("http://127.0.0.1:1/v1", "small", timeout_s=2)
    with pytest.raises(SettingsError, match="127.0.0.1:1/v1/embeddings"):
        await nobody.start()
    await nobody.aclose()
