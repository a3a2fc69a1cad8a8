"""Search in vector stores: by words with FTS5, and by meaning with vectors. Scores are 0 to 1."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import apsw
from msgspec.structs import replace

from antiphon.adapters.stores.sqlite.file import rows_of
from antiphon.adapters.stores.vectors.index import TOKENIZER, index_of, scope_of
from antiphon.adapters.stores.vectors.rows import decode_attributes
from antiphon.adapters.stores.vectors.similarity import VectorRow, VectorSearch
from antiphon.application.ports import Vectors
from antiphon.domain.retrieval.file_filters import Filter
from antiphon.domain.retrieval.ranking import Passage
from antiphon.domain.retrieval.text_chunks import add_spaces

MAX_WORDS = 32
"""The most different words of a query; further ones are ignored."""

K1, B = 1.2, 0.75
"""The parameters of BM25, with the same values as in FTS5."""

_WORD = re.compile(r"\w+")


def search(
    db: apsw.Connection,
    tenant: str,
    store_ids: Sequence[str],
    words: str,
    vectors: Vectors | None,
    file_filter: Filter | None,
    limit: int,
) -> list[Passage]:
    stores = rows_of(
        db,
        "SELECT s.key, s.tenant FROM stores s JOIN tenants t ON t.key = s.tenant WHERE t.name = ?"
        " AND s.id IN (SELECT value FROM json_each(?)) AND NOT s.is_removed",
        (tenant, json.dumps(store_ids)),
    )
    files = _matching_files(db, [key for key, _ in stores], file_filter)
    if not files:
        return []
    scopes = [scope_of(key) for key, _ in stores]
    text_search = _TextSearch(db, index_of(stores[0][1]), scopes, words)
    vector_search = VectorSearch(_vectors_of(db, files, vectors), vectors)
    keys = {*text_search.best(files, limit), *vector_search.best(limit)}
    text_scores, embedding_scores = text_search.scores(keys), vector_search.scores(keys)
    return [
        replace(
            passage,
            text_score=text_scores.get(passage.id, 0.0),
            embedding_score=embedding_scores.get(passage.id, 0.0),
        )
        for passage in _read_passages(db, keys)
    ]


def _matching_files(
    db: apsw.Connection, stores: Sequence[int], file_filter: Filter | None
) -> list[int]:
    """Return the files to search."""
    files = rows_of(
        db,
        "SELECT key, attributes FROM files WHERE store IN (SELECT value FROM json_each(?))"
        " AND status = 'completed' AND NOT is_removed",
        (json.dumps(stores),),
    )
    return [
        key
        for key, attributes in files
        if file_filter is None or file_filter.matches(decode_attributes(attributes))
    ]


def _read_passages(db: apsw.Connection, keys: Collection[int]) -> list[Passage]:
    rows = rows_of(
        db,
        "SELECT c.key, f.id, f.filename, f.attributes, c.text"
        " FROM chunks c JOIN files f ON f.key = c.file"
        " WHERE c.key IN (SELECT value FROM json_each(?))",
        (json.dumps(list(keys)),),
    )
    return [
        Passage(
            id=key,
            file_id=file_id,
            filename=filename,
            attributes=decode_attributes(attributes),
            text=text,
        )
        for key, file_id, filename, attributes, text in rows
    ]


class _TextSearch:
    """A search for the words of a query in the chunks of some stores.

    FTS5 finds the best chunks, in C. But its BM25 gives no weight to a word that is in more than
    half of the chunks, which in a small store is every word, and its scores have no upper bound. So
    the best chunks are scored again with Lucene's form of BM25, as a share of the highest possible
    score.
    """

    def __init__(self, db: apsw.Connection, index: str, scopes: Sequence[str], words: str) -> None:
        self._db = db
        self._index = index
        unique_words = dict.fromkeys(word.casefold() for word in _WORD.findall(add_spaces(words)))
        # FTS5 drops words without a token from the query, and `share` would then count wrong.
        tokens = db.fts5_tokenizer(TOKENIZER[0], [*TOKENIZER[1:]])
        indexed = (
            word for word in unique_words if tokens(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None)
        )
        self._words = [f'"{word}"' for word in islice(indexed, MAX_WORDS)]
        in_scope = " OR ".join(f'"{scope}"' for scope in scopes)
        self._match = f"scope : ({in_scope}) AND text : ({' OR '.join(self._words)})"

    def best(self, files: Sequence[int], limit: int) -> list[int]:
        if not self._words:
            return []
        rows = rows_of(
            self._db,
            f"SELECT w.rowid FROM {self._index} w CROSS JOIN chunks c ON c.key = w.rowid"
            f" WHERE {self._index} MATCH ?"
            " AND c.file IN (SELECT value FROM json_each(?))"
            f" ORDER BY bm25({self._index}, 0.0, 1.0) LIMIT ?",
            (self._match, json.dumps(files), limit),
        )
        return [key for (key,) in rows]

    def scores(self, keys: Collection[int]) -> Mapping[int, float]:
        if not self._words or not keys:
            return {}
        weights = self._weights()
        parameters = ", ".join("?" * len(weights))
        scores = rows_of(
            self._db,
            f"SELECT rowid, share({self._index}, {parameters}) FROM {self._index}"
            f" WHERE {self._index} MATCH ? AND rowid IN (SELECT value FROM json_each(?))",
            (*weights, f"text : ({' OR '.join(self._words)})", json.dumps(list(keys))),
        )
        return dict(scores)

    def _weights(self) -> list[float]:
        """Return the weight of each word: the fewer chunks of the tenant have it, the higher."""
        [(chunks,)] = rows_of(self._db, f"SELECT count(*) FROM {self._index}_docsize", ())
        weights = []
        for word in self._words:
            query = f"SELECT count(*) FROM {self._index} WHERE {self._index} MATCH ?"
            [(matches,)] = rows_of(self._db, query, (f"text : {word}",))
            weights.append(weight_of(chunks, matches))
        return weights


def weight_of(chunks: int, matches: int) -> float:
    """Return the weight of a word that `matches` of all `chunks` contain."""
    return math.log(1 + (chunks - matches + 0.5) / (matches + 0.5))


def register_share(db: apsw.Connection) -> None:
    """Register the SQL function `share`, which scores a chunk by the weights of the words."""
    db.register_fts5_function("share", _share)


def _share(chunk: apsw.FTS5ExtensionApi, /, *weights: Any) -> float:
    """Return the score of a chunk for the words of the query, from 0 to 1."""
    average = max(chunk.column_total_size(1) / max(chunk.row_count, 1), 1)
    length = K1 * (1 - B + B * chunk.column_size(1) / average)
    score = 0.0
    for position, weight in enumerate(weights):
        if chunk.phrase_columns(position):
            count = len(chunk.phrase_column_offsets(position, 1))
            score += weight * count / (count + length)
    return float(score / sum(weights))


def _vectors_of(
    db: apsw.Connection, files: Sequence[int], vectors: Vectors | None
) -> Iterator[VectorRow]:
    if vectors is None:
        return
    yield from db.execute(
        "SELECT first, count, content FROM vectors WHERE model = ?"
        " AND file IN (SELECT value FROM json_each(?)) AND length(content) = count * ?"
        " ORDER BY first",
        (vectors.model, json.dumps(files), len(vectors.each[0])),
    )
