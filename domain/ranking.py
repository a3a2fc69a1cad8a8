"""How what was found by words and what was found by meaning become one list.

Both scores are between 0 and 1; their weighted mean is the score of a passage, so that a threshold
means the same in every search, however much was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.vector_stores import HybridSearch, RankingOptions


class Passage(Struct, frozen=True, kw_only=True):
    """A chunk that was found; `text_score` and `embedding_score` say how well it fits."""

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
    """Raises: RequestError where nothing counts."""
    asked = options.hybrid_search if options is not None else None
    if asked is not None and not asked.embedding_weight + asked.text_weight:
        raise RequestError(
            "One of the weights must be more than 0.",
            param=f"{path}.hybrid_search",
            code="invalid_value",
        )


def weights_of(options: RankingOptions | None, *, has_embeddings: bool) -> HybridSearch:
    """Return the weights that are in force; where nothing knows meanings, words are all."""
    if not has_embeddings:
        return HybridSearch(embedding_weight=0.0, text_weight=1.0)
    asked = options.hybrid_search if options is not None else None
    return asked or HybridSearch()


def rank_passages(
    found: Iterable[Sequence[Passage]],
    weights: HybridSearch,
    *,
    most: int,
    threshold: float = 0.0,
) -> list[RankedPassage]:
    """Return the best `most` of what several searches found, best first; each passage once."""
    total = weights.embedding_weight + weights.text_weight
    best: dict[int, RankedPassage] = {}
    for passages in found:
        for each in passages:
            score = (
                weights.text_weight * each.text_score
                + weights.embedding_weight * each.embedding_score
            )
            score = round(score / total, 6)
            known = best.get(each.id)
            if score >= threshold and (known is None or known.score < score):
                best[each.id] = RankedPassage(score=score, passage=each)
    in_order = sorted(best.values(), key=lambda each: (-each.score, each.passage.id))
    return in_order[:most]
