"""Vectors are compared many rows at a time; each chunk gets the score of its own vector."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.stores.vectors.similarity import VectorRow, VectorSearch
from antiphon.testing.vector_stores import vectors_of

ROW = st.tuples(st.integers(0, 3), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1))


@given(st.lists(ROW, max_size=8), st.integers(1, 3))
def test_each_chunk_has_its_own_score(rows: list[tuple[int, list[float]]], at_a_time: int) -> None:
    stored: list[VectorRow] = []
    expected: dict[int, float] = {}
    key = 1
    for gap, scores in rows:
        key += gap
        content = b"".join(vectors_of(*([score, 0.0] for score in scores)).each)
        stored.append((key, len(scores), content))
        expected |= dict(enumerate(scores, key))
        key += len(scores)
    search = VectorSearch(stored, vectors_of([1.0, 0.0]), rows_at_a_time=at_a_time)
    assert search.scores([*expected, key]) == {**expected, key: 0.0}
    best = search.best(2)
    highest = sorted(expected.values(), reverse=True)[:2]
    assert sorted((expected[each] for each in best), reverse=True) == highest
