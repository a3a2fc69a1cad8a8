"""A guard that asks a server of OpenAI's moderations API (`/v1/moderations`)."""

from __future__ import annotations

import http
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import Struct

from antiphon.application.ports import Fetcher, Moderator
from antiphon.domain.errors import FetchFailed
from antiphon.domain.responses.guards import (
    GuardPlace,
    GuardQuestion,
    ModerationScores,
    Pass,
    Refuse,
    Stop,
    Verdict,
)

MAX_BYTES = 4 * 1024 * 1024
"""The size limit of an answer: some 40 scores for each piece of a text."""

PIECE_CHARS = 16_384
"""The server gets a longer text in pieces: models of moderation read no more at a time."""


TEXTS_AT_ONCE = 32
"""Texts in one request, as in OpenAI's API."""


class Moderation(Struct, frozen=True):
    """The result for one piece: whether it is flagged, and a score for each category."""

    flagged: bool
    categories: Mapping[str, bool | None] = {}
    category_scores: Mapping[str, float | None] = {}


class _Answer(Struct, frozen=True):
    results: list[Moderation]


_decode = msgspec.json.Decoder(_Answer).decode


class ModerationTerms(Struct, frozen=True, kw_only=True):
    """`thresholds`: the highest score of a category that still passes; without any, a text that the
    server flags does not. `stops`: it ends the response as filtered, and is not refused.
    """

    places: Collection[GuardPlace]
    thresholds: Mapping[str, float] = {}
    stops: bool = False


class ModerationGuard(Moderator):
    """Sends texts to `{url}/moderations`, and lets pass what is not flagged."""

    def __init__(
        self,
        url: str,
        fetcher: Fetcher,
        terms: ModerationTerms,
        *,
        model: str,
        api_key: str | None = None,
    ) -> None:
        self._url = f"{url.rstrip('/')}/moderations"
        self._fetcher = fetcher
        self._terms = terms
        self._model = model
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json",
            **({"authorization": f"Bearer {api_key}"} if api_key else {}),
        }

    @property
    def places(self) -> Collection[GuardPlace]:
        return self._terms.places

    async def check(self, asked: GuardQuestion) -> Verdict:
        results = await self._moderate(asked.pieces(PIECE_CHARS), asked.tenant)
        found = sorted({name for result in results for name in self._flagged_in(result)})
        if not found:
            return Pass()
        if self._terms.stops:
            return Stop(", ".join(found))
        return Refuse(f"This was refused by the moderation of the server ({', '.join(found)}).")

    @property
    def model(self) -> str:
        return self._model

    async def moderate(self, text: str, *, tenant: str) -> ModerationScores:
        pieces = GuardQuestion(place="input", text=text).pieces(PIECE_CHARS)
        results = await self._moderate(pieces, tenant)
        scores: dict[str, float] = {}
        categories: dict[str, bool] = {}
        for result in results:
            for name, score in result.category_scores.items():
                scores[name] = max(scores.get(name, 0.0), score or 0.0)
            for name, is_so in result.categories.items():
                categories[name] = categories.get(name, False) or bool(is_so)
        return ModerationScores(
            model=self._model,
            flagged=any(map(self._flagged_in, results)),
            categories=categories,
            category_scores=scores,
            category_applied_input_types=dict.fromkeys(categories, ("text",)),
        )

    async def _moderate(self, texts: Sequence[str], tenant: str) -> Sequence[Moderation]:
        """Return a result for each text. Raises: FetchError."""
        results: list[Moderation] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            results += await self._ask(texts[start : start + TEXTS_AT_ONCE], tenant)
        return results

    async def _ask(self, texts: Sequence[str], tenant: str) -> Sequence[Moderation]:
        body = msgspec.json.encode({"model": self._model, "input": texts})
        answer = await self._fetcher.fetch(
            self._url, tenant=tenant, method="POST", headers=self._headers, content=body
        )
        if answer.status != http.HTTPStatus.OK:
            raise FetchFailed(f"The moderations API answers with status {answer.status}.")
        try:
            results = _decode(answer.content).results
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise FetchFailed(f"The moderations API answers with something else: {error}") from None
        if len(results) != len(texts):
            raise FetchFailed("The moderations API does not answer with one result for each text.")
        return results

    def _flagged_in(self, result: Moderation) -> Sequence[str]:
        """Return the names of the categories for which a text does not pass."""
        if thresholds := self._terms.thresholds:
            scores = {name: result.category_scores.get(name) for name in thresholds}
            if missing := [name for name, score in scores.items() if score is None]:
                raise FetchFailed(f"The moderations API has no score for {missing[0]!r}.")
            return [name for name, score in scores.items() if (score or 0.0) > thresholds[name]]
        if not result.flagged:
            return ()
        return [name for name, is_so in result.categories.items() if is_so] or ["flagged"]
