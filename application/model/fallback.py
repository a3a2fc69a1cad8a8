"""A model with others to fall back on (docs/guides/models.md#fallback)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from msgspec.structs import replace

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import (
    AdmitPrompt,
    Model,
    ModelTurn,
    RenderedTurn,
    Turn,
    TurnFacts,
    Weights,
)
from antiphon.domain.deltas import Delta
from antiphon.domain.errors import (
    EngineDead,
    EngineError,
    ModelBusy,
    RequestError,
    ServerOverloaded,
)

logger = logging.getLogger("antiphon.models")

FAILURES = (EngineError, ServerOverloaded, ModelBusy)
"""Errors after which another model is tried; a refused request is the client's mistake."""

T = TypeVar("T")


class FallbackModel(Model):
    """Runs each turn on the first of these models that does not fail before its first delta.

    It has the names of the first model, and the abilities of the first one that is there. A turn
    whose images or effort another model does not know is adapted, or goes to the next one.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models

    @property
    def names(self) -> Sequence[str]:
        return self._models[0].names

    @property
    def format_name(self) -> str:
        return self._first(lambda model: model.format_name)

    @property
    def reads_images(self) -> bool:
        return self._first(lambda model: model.reads_images)

    @property
    def efforts(self) -> Sequence[str]:
        return self._first(lambda model: model.efforts)

    @property
    def only_answers_end_turns(self) -> bool:
        return self._first(lambda model: model.only_answers_end_turns)

    @property
    def context_length(self) -> int:
        return self._first(lambda model: model.context_length)

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._first(lambda model: model.sampling_defaults)

    @property
    def schedules_by_priority(self) -> bool:
        return self._first(lambda model: model.schedules_by_priority)

    async def start(self) -> None:
        """Each model is started by itself."""

    async def aclose(self) -> None:
        """Each model is closed by itself."""

    async def check(self) -> None:
        """Check the model itself: its state is told under its name."""
        await self._models[0].check()

    async def count(self, turn: Turn) -> int:
        for model in self._models[:-1]:
            try:
                return await model.count(_adapt(turn, model))
            except EngineDead:
                continue
        return await self._models[-1].count(_adapt(turn, self._models[-1]))

    async def render(self, turn: Turn) -> RenderedTurn | None:
        """Render for the model that the turn names."""
        models = (model for model in self._models if turn.model in model.names)
        model = next(models, self._models[0])
        return await model.render(_adapt(turn, model))

    def ignored_fields(self, turn: Turn) -> Sequence[str]:
        return self._first(lambda model: model.ignored_fields(_adapt(turn, model)))

    async def start_turn(
        self, turn: Turn, *, request_id: str, admit: AdmitPrompt | None = None
    ) -> ModelTurn:
        attempts = _Attempts(self._models, turn, request_id=request_id, admit=admit)
        return FallbackTurn(await attempts.start_next(), attempts)

    @property
    def weighs_at_once(self) -> int:
        return self._first(lambda model: model.weighs_at_once)

    async def labels(self, count: int) -> Sequence[str]:
        return await self._first_to_answer(lambda model, _: model.labels(count))

    async def weigh(self, turn: Turn, labels: Sequence[str], *, request_id: str) -> Weights:
        return await self._first_to_answer(
            lambda model, number: model.weigh(
                _adapt(turn, model), labels, request_id=_name_attempt(request_id, number)
            )
        )

    async def _first_to_answer(self, ask: Callable[[Model, int], Awaitable[T]]) -> T:
        """Return the answer of the first model that does not fail. Raises: the first failure."""
        failure: Exception | None = None
        for number, model in enumerate(self._models):
            try:
                return await ask(model, number)
            except FAILURES as error:
                failure = failure or error
            except RequestError:
                if failure is None:
                    raise
        assert failure is not None
        raise failure

    def _first(self, read: Callable[[Model], T]) -> T:
        """Return a property of the first model that is there. Raises: EngineDead."""
        for model in self._models[:-1]:
            try:
                return read(model)
            except EngineDead:
                continue
        return read(self._models[-1])


class FallbackTurn(TurnWrapper):
    """A turn that begins again on the next model if it fails before its first delta."""

    def __init__(self, inner: ModelTurn, attempts: _Attempts) -> None:
        super().__init__(inner)
        self._attempts = attempts

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        has_shown = False
        while True:
            try:
                async with aclosing(aiter(self._inner)) as batches:
                    async for deltas in batches:
                        has_shown = has_shown or bool(deltas)
                        yield deltas
                return
            except EngineError as error:
                if has_shown:
                    raise
                self._inner = await self._attempts.start_next(error)

    def facts(self) -> TurnFacts:
        facts = super().facts()
        return replace(facts, attempts=facts.attempts + self._attempts.count - 1)


class _Attempts:
    """The attempts at one turn, one for each model."""

    def __init__(
        self,
        models: Sequence[Model],
        turn: Turn,
        *,
        request_id: str,
        admit: AdmitPrompt | None,
    ) -> None:
        self._remaining = iter(models)
        self._turn = turn
        self._request_id = request_id
        self._number = 0
        self._admit = admit
        self._refusal: Exception | None = None

    @property
    def count(self) -> int:
        """The number of models that were tried."""
        return self._number

    async def start_next(self, failure: Exception | None = None) -> ModelTurn:
        """Return the turn on the next model, after the `failure` of the one before.

        Raises: the first failure if no model is left; RequestError if the first model refuses.
        """
        for model in self._remaining:
            number, self._number = self._number, self._number + 1
            if failure is not None:
                logger.warning(
                    "%s: falling back on %r: %s", self._request_id, model.names[0], failure
                )
            try:
                return await model.start_turn(
                    _adapt(self._turn, model),
                    request_id=_name_attempt(self._request_id, number),
                    admit=self._admit and self._admit_once,
                )
            except FAILURES as error:
                if error is self._refusal:
                    raise
                failure = failure or error
            except RequestError:
                if failure is None:
                    raise
        assert failure is not None
        raise failure

    async def _admit_once(self, tokens: int) -> None:
        if self._admit is None:
            return
        try:
            await self._admit(tokens)
        except Exception as error:  # not the model's failure
            self._refusal = error
            raise
        self._admit = None


def _name_attempt(request_id: str, number: int) -> str:
    return f"{request_id}_{number}" if number else request_id


def _adapt(turn: Turn, model: Model) -> Turn:
    """Return the turn for a model that may have another name and other efforts."""
    name = turn.model if turn.model in model.names else model.names[0]
    try:
        effort = turn.effort if turn.effort in model.efforts else None
    except EngineDead:  # it refuses the turn anyway
        return turn
    return replace(turn, model=name, effort=effort)
