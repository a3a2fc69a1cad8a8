"""Merge the results of a text search and an embedding search into one ranking.

Both scores are between 0 and 1, and a passage's score is their weighted mean. A threshold therefore
means the same in every search, regardless of the number of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.retrieval.vector_stores import HybridSearch, RankingOptions


class Passage(Struct, frozen=True, kw_only=True):
    """A chunk that a search found, with its text score and embedding score."""

    id: int
    file_id: str
    filename: str
    attributes: Json
    text: str
    text_score: float = 0.0
    embedding_score: float = 0.0


class RankedPassage(Struct, frozen=True, kw_only=True):
    """A passage with its score, from 0 to 1."""

    score: float
    passage: Passage


def check_weights(options: RankingOptions | None, path: str) -> None:
    """Check that not all weights are 0. Raises: RequestError."""
    weights = options.hybrid_search if options is not None else None
    if weights is not None and not weights.embedding_weight + weights.text_weight:
        raise RequestError(
            "At least one of the weights must be greater than 0.",
            param=f"{path}.hybrid_search",
            code="invalid_value",
        )


def weights_of(options: RankingOptions | None, *, has_embeddings: bool) -> HybridSearch:
    """Return the weights to use; without embeddings, only the text score counts."""
    if not has_embeddings:
        return HybridSearch(embedding_weight=0.0, text_weight=1.0)
    weights = options.hybrid_search if options is not None else None
    return weights or HybridSearch()


def rank_passages(
    results: Iterable[Sequence[Passage]],
    weights: HybridSearch,
    *,
    limit: int,
    threshold: float = 0.0,
) -> list[RankedPassage]:
    """Return the `limit` best passages of several searches, best first and without duplicates."""
    total = weights.embedding_weight + weights.text_weight
    best: dict[int, RankedPassage] = {}
    for passages in results:
        for passage in passages:
            weighted_sum = (
                weights.text_weight * passage.text_score
                + weights.embedding_weight * passage.embedding_score
            )
            score = round(weighted_sum / total, 6)
            previous = best.get(passage.id)
            if score >= threshold and (previous is None or previous.score < score):
                best[passage.id] = RankedPassage(score=score, passage=passage)
    ranking = sorted(best.values(), key=lambda ranked: (-ranked.score, ranked.passage.id))
    return ranking[:limit]
