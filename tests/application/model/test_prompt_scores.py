"""Engines that do not score prompts are asked token by token, for as long as somebody reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template.scripted.markup import ScriptedMarkup, scripted_chat
from antiphon.application.model.prompt_scores import MAX_STEPS
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import EngineRequest, ModelTurn, Sampling, Step, Turn
from antiphon.domain.deltas import TextDelta
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import RawPrompt

TEXT = "one two three four five"


class UnscoringEngine(ScriptedEngine):
    """Writes down which prompt it was asked to go on from, and the token that was forced."""

    def __init__(self) -> None:
        super().__init__(ScriptedMarkup())
        self.asked: list[tuple[int, list[str]]] = []

    @property
    def scores_prompts(self) -> bool:
        return False

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step]:
        assert request.sampling.prompt_logprobs is None
        self.asked.append((len(request.prompt.token_ids), [*request.sampling.logit_bias]))
        return await super().generate(request)


async def start(engine: UnscoringEngine, raw: RawPrompt) -> ModelTurn:
    model = TokenModel(scripted_chat, engine)
    await model.start()
    sampling = Sampling(max_tokens=3, logprobs=1, prompt_logprobs=1)
    turn = Turn(model="scripted", items=(), raw_prompt=raw, sampling=sampling)
    return await model.start_turn(turn, request_id="r")


async def test_each_token_is_forced_once_after_those_before_it() -> None:
    engine, tokens = UnscoringEngine(), [*scripted_chat().encode(TEXT)]
    turn = await start(engine, RawPrompt(text=TEXT, echo=True))
    deltas = [delta async for batch in turn for delta in batch]
    echoed = deltas[0]
    assert isinstance(echoed, TextDelta)
    assert echoed.text == TEXT
    assert len(echoed.logprobs) == len(tokens)
    forced = [(place, [str(tokens[place])]) for place in range(1, len(tokens))]
    assert engine.asked == [forced[-1], *forced[:-1], (len(tokens), [])]


async def test_nothing_more_is_asked_for_a_reader_who_has_left() -> None:
    engine = UnscoringEngine()
    turn = await start(engine, RawPrompt(text=TEXT, echo=True))
    await turn.aclose()
    assert len(engine.asked) == 1
    async with aclosing(aiter(turn)):
        pass
    assert len(engine.asked) == 1


async def test_a_prompt_of_one_token_is_the_run_alone() -> None:
    engine = UnscoringEngine()
    turn = await start(engine, RawPrompt(tokens=(68,), echo=True))
    deltas = [delta async for batch in turn for delta in batch]
    assert isinstance(deltas[0], TextDelta)
    assert len(deltas[0].logprobs) == 1
    assert engine.asked == [(1, [])]


async def test_a_prompt_that_needs_too_many_steps_is_refused() -> None:
    with pytest.raises(RequestError, match=str(MAX_STEPS)):
        await start(UnscoringEngine(), RawPrompt(tokens=(68,) * (MAX_STEPS + 1), echo=True))
