"""Search in vector stores: by words with FTS5, by meaning with vectors, both scores from 0 to 1."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import apsw
from msgspec.structs import replace

from antiphon.adapters.stores.sqlite_file import rows_of
from antiphon.adapters.stores.vector_store_index import TOKENIZER, index_of, scope_of
from antiphon.adapters.stores.vector_store_rows import decode_attributes
from antiphon.application.ports import Vectors
from antiphon.domain.file_filters import Filter
from antiphon.domain.ranking import Passage
from antiphon.domain.text_chunks import add_spaces

MOST_WORDS = 32
"""Different words of a query that are searched for, the first ones."""

FLOAT_BYTES = 4
K1, B = 1.2, 0.75
"""BM25, with the values that FTS5 has."""

_WORD = re.compile(r"\w+")


def search(
    db: apsw.Connection,
    tenant: str,
    store_ids: Sequence[str],
    words: str,
    vectors: Vectors | None,
    fits: Filter | None,
    most: int,
) -> list[Passage]:
    stores = rows_of(
        db,
        "SELECT s.key, s.tenant FROM stores s JOIN tenants t ON t.key = s.tenant WHERE t.name = ?"
        " AND s.id IN (SELECT value FROM json_each(?)) AND NOT s.is_removed",
        (tenant, json.dumps(store_ids)),
    )
    files = _fitting(db, [key for key, _ in stores], fits)
    if not files:
        return []
    asked = _Asked(db, index_of(stores[0][1]), [scope_of(key) for key, _ in stores], words)
    likest = _Likeness(db, files, vectors)
    keys = {*asked.best(files, most), *likest.best(most)}
    text_score, embedding_score = asked.scores(keys), likest.scores(keys)
    return [
        replace(
            each,
            text_score=text_score.get(each.id, 0.0),
            embedding_score=embedding_score.get(each.id, 0.0),
        )
        for each in _passages(db, keys)
    ]


def _fitting(db: apsw.Connection, stores: Sequence[int], fits: Filter | None) -> list[int]:
    """Return the files that are to be searched."""
    found = rows_of(
        db,
        "SELECT key, attributes FROM files WHERE store IN (SELECT value FROM json_each(?))"
        " AND status = 'completed' AND NOT is_removed",
        (json.dumps(stores),),
    )
    return [
        key for key, attributes in found if fits is None or fits.fits(decode_attributes(attributes))
    ]


def _passages(db: apsw.Connection, keys: Collection[int]) -> list[Passage]:
    found = rows_of(
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
        for key, file_id, filename, attributes, text in found
    ]


class _Asked:
    """The words of a query, in the chunks of some stores.

    FTS5 finds the best chunks, in C. Its BM25 gives a word that is in more than half of them no
    weight at all, which in a store of few chunks is every word; and its scores have no upper bound.
    So the best are scored once more, by the form of BM25 that Lucene has, as a share of what no
    text could exceed.
    """

    def __init__(self, db: apsw.Connection, index: str, scopes: Sequence[str], words: str) -> None:
        self._db = db
        self._index = index
        found = dict.fromkeys(word.casefold() for word in _WORD.findall(add_spaces(words)))
        # What the index does not hold as a word would be no part of the query, and `share` would
        # count wrong.
        tokens = db.fts5_tokenizer(TOKENIZER[0], [*TOKENIZER[1:]])
        is_word = (word for word in found if tokens(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None))
        self._words = [f'"{word}"' for word in islice(is_word, MOST_WORDS)]
        in_scope = " OR ".join(f'"{scope}"' for scope in scopes)
        self._match = f"scope : ({in_scope}) AND text : ({' OR '.join(self._words)})"

    def best(self, files: Sequence[int], most: int) -> list[int]:
        if not self._words:
            return []
        found = rows_of(
            self._db,
            f"SELECT w.rowid FROM {self._index} w CROSS JOIN chunks c ON c.key = w.rowid"
            f" WHERE {self._index} MATCH ?"
            " AND c.file IN (SELECT value FROM json_each(?))"
            f" ORDER BY bm25({self._index}, 0.0, 1.0) LIMIT ?",
            (self._match, json.dumps(files), most),
        )
        return [key for (key,) in found]

    def scores(self, keys: Collection[int]) -> Mapping[int, float]:
        if not self._words or not keys:
            return {}
        weights = self._weights()
        given = ", ".join("?" * len(weights))
        found = rows_of(
            self._db,
            f"SELECT rowid, share({self._index}, {given}) FROM {self._index}"
            f" WHERE {self._index} MATCH ? AND rowid IN (SELECT value FROM json_each(?))",
            (*weights, f"text : ({' OR '.join(self._words)})", json.dumps(list(keys))),
        )
        return dict(found)

    def _weights(self) -> list[float]:
        """Return how much each word counts: the more, the fewer chunks of the tenant have it."""
        [(chunks,)] = rows_of(self._db, f"SELECT count(*) FROM {self._index}_docsize", ())
        weights = []
        for word in self._words:
            query = f"SELECT count(*) FROM {self._index} WHERE {self._index} MATCH ?"
            [(having,)] = rows_of(self._db, query, (f"text : {word}",))
            weights.append(math.log(1 + (chunks - having + 0.5) / (having + 0.5)))
        return weights


def register_share(db: apsw.Connection) -> None:
    """Let queries score what they find by the weights of their words."""
    db.register_fts5_function("share", _share)


def _share(chunk: apsw.FTS5ExtensionApi, /, *weights: Any) -> float:
    """Return the score of a chunk for the words that are asked for, from 0 to 1."""
    average = max(chunk.column_total_size(1) / max(chunk.row_count, 1), 1)
    length = K1 * (1 - B + B * chunk.column_size(1) / average)
    score = 0.0
    for position, weight in enumerate(weights):
        if chunk.phrase_columns(position):
            count = len(chunk.phrase_column_offsets(position, 1))
            score += weight * count / (count + length)
    return float(score / sum(weights))


class _Likeness:
    """How like the query's vector those of all chunks of some files are, where they have any."""

    def __init__(self, db: apsw.Connection, files: Sequence[int], vectors: Vectors | None) -> None:
        self._scores: dict[int, float] = {}
        if vectors is None:
            return
        import numpy as np  # the extra `embeddings`

        asked = np.frombuffer(vectors.each[0], dtype=np.float32)
        rows = db.execute(
            "SELECT first, count, content FROM vectors WHERE model = ?"
            " AND file IN (SELECT value FROM json_each(?)) AND length(content) = count * ?",
            (vectors.model, json.dumps(files), len(asked) * FLOAT_BYTES),
        )
        for first, count, content in rows:
            found = np.frombuffer(content, dtype=np.float32).reshape(count, len(asked)) @ asked
            self._scores.update(zip(range(first, first + count), found.tolist(), strict=True))

    def best(self, most: int) -> list[int]:
        return sorted(self._scores, key=self._scores.__getitem__, reverse=True)[:most]

    def scores(self, keys: Collection[int]) -> Mapping[int, float]:
        return {key: min(max(self._scores.get(key, 0.0), 0.0), 1.0) for key in keys}
