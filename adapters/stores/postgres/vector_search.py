"""Search in the vector stores of PostgreSQL: by words there, by meaning with NumPy here.

The vectors of a file never change once it can be found, so this server remembers those that it has
compared: sending them for every search would take longer than comparing them.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from antiphon.adapters.stores.postgres import vector_statements as sql
from antiphon.adapters.stores.postgres.server import PostgresServer, escape
from antiphon.adapters.stores.vectors.rows import decode_attributes
from antiphon.adapters.stores.vectors.search import MAX_WORDS, weight_of
from antiphon.adapters.stores.vectors.similarity import VectorRow, VectorSearch
from antiphon.application.ports import Vectors
from antiphon.application.support.lru_cache import LruCache
from antiphon.domain.retrieval.file_filters import Filter
from antiphon.domain.retrieval.ranking import Passage
from antiphon.domain.retrieval.text_chunks import add_spaces

CACHE_BYTES = 256 * 1024 * 1024
PARTS_PER_READ = 32

_WORD = re.compile(r"[^\W_]{1,100}")
_DIACRITICS = re.compile("[\u0300-\u036f]")


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are indexed, but for their stems.

    >>> words_of("Crème brûlée, snake_case!")
    ['creme', 'brulee', 'snake', 'case']
    """
    apart = unicodedata.normalize("NFD", add_spaces(text).casefold())
    return _WORD.findall(unicodedata.normalize("NFC", _DIACRITICS.sub("", apart)))


class PostgresVectorSearch:
    """The search of `VectorStores`, for all tenants."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._cache: LruCache[bytes] = LruCache(CACHE_BYTES)

    async def __call__(
        self,
        tenant: str,
        store_ids: Sequence[str],
        *,
        words: str,
        vectors: Vectors | None,
        file_filter: Filter | None,
        limit: int,
    ) -> list[Passage]:
        rows = await self._server.fetch(
            sql.SEARCHED_FILES, tenant, [escape(each) for each in store_ids], idempotent=True
        )
        files = [
            number
            for number, attributes, _ in rows
            if file_filter is None or file_filter.matches(decode_attributes(attributes))
        ]
        if not files:
            return []
        by_words = await self._words(rows[0][2], words)
        by_meaning = await self._compare(files, vectors)
        text_scores = dict(await by_words.best(files, limit))
        keys = {*text_scores, *by_meaning.best(limit)}
        text_scores |= await by_words.scores(keys - text_scores.keys())
        embedding_scores = by_meaning.scores(keys)
        found = await self._server.fetch(sql.PASSAGES, list(keys), idempotent=True)
        return [
            Passage(
                id=number,
                file_id=file_id,
                filename=filename,
                attributes=decode_attributes(attributes),
                text=text,
                text_score=text_scores.get(number, 0.0),
                embedding_score=embedding_scores.get(number, 0.0),
            )
            for number, file_id, filename, attributes, text in found
        ]

    async def _words(self, tenant: int, text: str) -> _WordSearch:
        unique = islice(dict.fromkeys(words_of(text)), MAX_WORDS)
        rows = await self._server.fetch(sql.STEMS, " ".join(unique), idempotent=True)
        stems = [stem for (stem,) in rows]
        if not stems:
            return _WordSearch(self._server, tenant, {}, average_length=1.0)
        [(chunks, words)] = await self._server.fetch(sql.TENANT_TOTALS, tenant, idempotent=True)
        counts = await self._server.fetch(sql.COUNT_MATCHES, tenant, stems, idempotent=True)
        weights = {
            stem: weight_of(max(chunks, matches), matches)
            for stem, (matches,) in zip(stems, counts, strict=True)
        }
        average_length = max(words / max(chunks, 1), 1.0)
        return _WordSearch(self._server, tenant, weights, average_length=average_length)

    async def _compare(self, files: Sequence[int], vectors: Vectors | None) -> VectorSearch:
        if vectors is None:
            return VectorSearch((), None)
        rows = await self._vectors_of(files, vectors)
        return await asyncio.to_thread(VectorSearch, rows, vectors)

    async def _vectors_of(self, files: Sequence[int], vectors: Vectors) -> list[VectorRow]:
        size = len(vectors.each[0])
        parts = await self._server.fetch(
            sql.VECTOR_PARTS, list(files), vectors.model, size, idempotent=True
        )
        contents = {first: self._cache.get(_key(first)) for first, _ in parts}
        missing = [first for first, content in contents.items() if content is None]
        for place in range(0, len(missing), PARTS_PER_READ):
            some = missing[place : place + PARTS_PER_READ]
            rows = await self._server.fetch(sql.VECTOR_CONTENTS, some, idempotent=True)
            for first, content in rows:
                contents[first] = content
                self._cache.put(_key(first), content, len(content))
        # A part that is missing now belongs to a file that was erased meanwhile.
        return [
            (first, count, content)
            for first, count in parts
            if (content := contents[first]) is not None
        ]


def _key(first: int) -> bytes:
    return first.to_bytes(16, "big")


class _WordSearch:
    """A search for the words of a query, which have weights, in the chunks of a tenant."""

    def __init__(
        self,
        server: PostgresServer,
        tenant: int,
        weights: Mapping[str, float],
        *,
        average_length: float,
    ) -> None:
        self._server = server
        words = [f"{tenant}:{stem}" for stem in weights]
        query = " | ".join(f"'{word}'" for word in words)
        values = list(weights.values())
        self._values = (query, words, values, average_length, sum(values))

    async def best(self, files: Sequence[int], limit: int) -> Mapping[int, float]:
        return await self._fetch(sql.BEST_CHUNKS, files, limit)

    async def scores(self, keys: Collection[int]) -> Mapping[int, float]:
        return await self._fetch(sql.SCORES_OF, keys, len(keys))

    async def _fetch(self, query: str, numbers: Collection[int], limit: int) -> Mapping[int, float]:
        if not self._values[1] or not numbers:
            return {}
        timeouts = self._server.run_timeouts
        rows = await self._server.fetch(
            query, *self._values, list(numbers), limit, timeouts=timeouts, idempotent=True
        )
        return {number: float(score) for number, score in rows}
