"""A guard that asks a model of this server whether a statement is true of a text."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct

from antiphon.application.model.models import Models
from antiphon.application.ports import Guard, Turn
from antiphon.domain.items import Message
from antiphon.domain.requests import decisions as d
from antiphon.domain.responses.guards import (
    GuardPlace,
    GuardQuestion,
    Pass,
    Refuse,
    Stop,
    Verdict,
)
from antiphon.domain.tools import ToolChoice

PIECE_CHARS = 8192
"""The model gets a longer text in pieces, so that it fits the context of a small model."""

NO_REASONING = "none"


class StatementTerms(Struct, frozen=True, kw_only=True):
    """`statement`: what is said of a text that may not pass, and `threshold`: the probability above
    which it may not. `stops`: it ends the response as filtered, and is not refused.
    """

    places: Collection[GuardPlace]
    statement: str
    threshold: float = 0.5
    stops: bool = False


class ModelGuard(Guard):
    """Asks the model as `POST /v1/decisions` does: it writes one token, whose probability counts.

    The model reads the text as a message of its own, before the question.
    """

    def __init__(self, models: Callable[[], Models], model: str, terms: StatementTerms) -> None:
        self._models = models
        self._model = model
        self._terms = terms
        self._asked = 0

    @property
    def places(self) -> Collection[GuardPlace]:
        return self._terms.places

    async def check(self, asked: GuardQuestion) -> Verdict:
        for piece in asked.pieces(PIECE_CHARS):
            if await self._probability_of(piece, asked) > self._terms.threshold:
                return Stop(self._terms.statement) if self._terms.stops else Refuse()
        return Pass()

    async def _probability_of(self, text: str, asked: GuardQuestion) -> float:
        """Return how likely the statement is. Raises: AntiphonError."""
        model = self._models().get(self._model)
        question = d.PredicateQuestion(instructions=self._terms.statement)
        labels = await model.labels(len(d.options_of(question)))
        decision = d.NewDecision(model=self._model, input=text, questions=(question,))
        request = d.request_of(decision, labels)
        turn = Turn(
            model=self._model,
            items=[msgspec.json.decode(item, type=Message) for item in request.input or ()],
            tenant=asked.tenant,
            choice=ToolChoice(mode="none"),
            effort=NO_REASONING if NO_REASONING in model.efforts else None,
            begins_answer=True,
        )
        self._asked += 1
        request_id = f"guard_{asked.response_id}_{self._asked}"
        weights = await model.weigh(turn, labels, request_id=request_id)
        return d.normalize(weights.logs)[0]
