"""Contract tests for the port `Embeddings`."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Sequence

import pytest

from antiphon.application.ports import Embeddings
from antiphon.domain.errors import RequestError

TEXTS = ("A dog barks.", "An antiphon is sung.", "犬が吠える。")
CLOSE = 1e-3


def numbers_of(vector: bytes) -> Sequence[float]:
    return array("f", vector)


def similarity(one: bytes, other: bytes) -> float:
    """Return the cosine of the angle between two vectors of length 1."""
    return sum(a * b for a, b in zip(numbers_of(one), numbers_of(other), strict=True))


@pytest.mark.asyncio
class EmbeddingsContract:
    """Subclass it where pytest collects tests.

    class TestMyEmbeddings(EmbeddingsContract):
        @pytest_asyncio.fixture
        async def embeddings(self):
            embeddings = MyEmbeddings()
            await embeddings.start()
            yield embeddings
            await embeddings.aclose()
    """

    @pytest.fixture
    def embeddings(self) -> Embeddings:
        raise NotImplementedError("override this fixture: return your embeddings, started")

    async def test_each_text_has_a_vector_of_length_1(self, embeddings: Embeddings) -> None:
        vectors = await embeddings.embed(TEXTS)
        assert vectors.model
        assert len(vectors.each) == len(TEXTS)
        assert len({len(vector) for vector in vectors.each}) == 1
        for vector in vectors.each:
            assert math.hypot(*numbers_of(vector)) == pytest.approx(1, abs=CLOSE)

    async def test_vectors_come_in_the_order_of_their_texts(self, embeddings: Embeddings) -> None:
        together = await embeddings.embed(TEXTS)
        for text, vector in zip(TEXTS, together.each, strict=True):
            [alone] = (await embeddings.embed([text])).each
            assert similarity(alone, vector) == pytest.approx(1, abs=CLOSE)

    async def test_all_vectors_are_of_one_model(self, embeddings: Embeddings) -> None:
        first, second = [await embeddings.embed([text]) for text in TEXTS[:2]]
        assert first.model == second.model
        assert len(first.each[0]) == len(second.each[0])

    @pytest.mark.parametrize("text", [" ", "\x00", "word " * 5000, "🍀\u2028\n"])
    async def test_any_text_has_a_vector(self, embeddings: Embeddings, text: str) -> None:
        [vector] = (await embeddings.embed([text])).each
        assert math.hypot(*numbers_of(vector)) == pytest.approx(1, abs=CLOSE)

    async def test_many_texts_may_come_at_once(self, embeddings: Embeddings) -> None:
        texts = [f"text {number}" for number in range(100)]
        assert len((await embeddings.embed(texts)).each) == 100

    async def test_lists_of_tokens_have_vectors_or_are_refused_as_input(
        self, embeddings: Embeddings
    ) -> None:
        if type(embeddings).embed_tokens is Embeddings.embed_tokens:
            with pytest.raises(RequestError, match="tokens"):
                await embeddings.embed_tokens([[1, 2], [3]])
            return
        assert len((await embeddings.embed_tokens([[1, 2], [3]])).each) == 2

    async def test_a_cancelled_call_does_not_affect_the_others(
        self, embeddings: Embeddings
    ) -> None:
        leaving, staying = (asyncio.create_task(embeddings.embed(TEXTS)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        assert len((await staying).each) == len(TEXTS)
        await asyncio.wait([leaving])
        assert len((await embeddings.embed(TEXTS)).each) == len(TEXTS)
