"""The similarity of a query's vector to the stored vectors, computed by NumPy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import Any

from antiphon.application.ports import Vectors

ROWS_AT_A_TIME = 256
"""Some megabytes of vectors, which are copied together."""

VectorRow = tuple[int, int, bytes]
"""The first of some chunks, how many there are, and their vectors as float32."""


class VectorSearch:
    """The similarity of the query's vector to the vectors of some files, in the order of chunks.

    The scores stay in arrays: work in Python would hold the interpreter while others wait for it.
    """

    def __init__(
        self,
        rows: Iterable[VectorRow],
        vectors: Vectors | None,
        *,
        rows_at_a_time: int = ROWS_AT_A_TIME,
    ) -> None:
        self._keys: Any = ()
        self._scores: Any = ()
        if vectors is None:
            return
        import numpy as np  # the extra `embeddings`

        query = np.frombuffer(vectors.each[0], dtype=np.float32)
        keys, scores = [], []
        rows = iter(rows)
        # Several rows at a time: a row has few vectors, and each call of NumPy costs a microsecond.
        while some := list(islice(rows, rows_at_a_time)):
            firsts, counts, contents = zip(*some, strict=True)
            ends = np.cumsum(counts)
            keys.append(np.arange(ends[-1]) + np.repeat(firsts - ends + counts, counts))
            joined = np.frombuffer(b"".join(contents), dtype=np.float32)
            scores.append(joined.reshape(-1, len(query)) @ query)
        if keys:
            self._keys, self._scores = np.concatenate(keys), np.concatenate(scores)

    def best(self, limit: int) -> list[int]:
        keys = self._keys
        if len(keys) > limit:
            keys = keys[self._scores.argpartition(-limit)[-limit:]]
        return [int(key) for key in keys]

    def scores(self, keys: Collection[int]) -> Mapping[int, float]:
        scores = dict.fromkeys(keys, 0.0)
        if not len(self._keys):
            return scores
        wanted = list(keys)
        places = self._keys.searchsorted(wanted).clip(max=len(self._keys) - 1)
        for key, place in zip(wanted, places, strict=True):
            if self._keys[place] == key:
                scores[key] = min(max(float(self._scores[place]), 0.0), 1.0)
        return scores
