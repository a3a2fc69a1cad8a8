"""Engines that do not score prompts are asked token by token, for as long as somebody reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template.scripted.markup import ScriptedMarkup, scripted_chat
from antiphon.application.model.prompt_scores import MAX_STEPS
from antiphon.application.model.raw_prompts import LOGPROBS_AT_ONCE
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import EngineRequest, ModelTurn, Sampling, Step, Turn
from antiphon.domain.bounds import MAX_LOGPROBS
from antiphon.domain.deltas import TextDelta
from antiphon.domain.errors import EngineError, RequestError
from antiphon.domain.requests.request import RawPrompt

TEXT = "one two three four five"


class UnscoringEngine(ScriptedEngine):
    """Writes what it must, and notes the length of each prompt and the token that was forced."""

    def __init__(self) -> None:
        super().__init__(ScriptedMarkup())
        self.asked: list[tuple[int, list[str]]] = []

    @property
    def scores_prompts(self) -> bool:
        return False

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step]:
        assert request.sampling.prompt_logprobs is None
        self.asked.append((len(request.prompt.token_ids), [*request.sampling.logit_bias]))
        forced = [int(token) for token in request.sampling.logit_bias]
        return _write(forced, await super().generate(request))


async def _write(forced: list[int], steps: AsyncGenerator[Step]) -> AsyncGenerator[Step]:
    async with aclosing(steps):
        async for step in steps:
            yield replace(step, token_ids=forced) if forced else step


async def start(engine: ScriptedEngine, raw: RawPrompt) -> ModelTurn:
    model = TokenModel(scripted_chat, engine)
    await model.start()
    sampling = Sampling(max_tokens=3, logprobs=1, prompt_logprobs=1)
    turn = Turn(model="scripted", items=(), raw_prompt=raw, sampling=sampling)
    return await model.start_turn(turn, request_id="r")


async def test_each_token_is_forced_once_after_those_before_it() -> None:
    engine = UnscoringEngine()
    tokens = [*await scripted_chat().encode(TEXT, Turn(model="scripted", items=()))]
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


class DisobedientEngine(ScriptedEngine):
    """Ignores what it is forced to write."""

    def __init__(self) -> None:
        super().__init__(ScriptedMarkup())

    scores_prompts = False


async def test_a_token_that_the_engine_did_not_write_has_no_score() -> None:
    with pytest.raises(EngineError, match="how likely"):
        await start(DisobedientEngine(), RawPrompt(text=TEXT, echo=True))


@pytest.mark.parametrize("scores_prompts", [True, False])
async def test_more_log_probabilities_than_a_response_may_have_are_refused(
    scores_prompts: bool,
) -> None:
    engine = ScriptedEngine(ScriptedMarkup()) if scores_prompts else UnscoringEngine()
    tokens = (68,) * (MAX_LOGPROBS // 2)
    with pytest.raises(RequestError, match=str(MAX_LOGPROBS)) as refusal:
        await start(engine, RawPrompt(tokens=(*tokens, 68), echo=True))
    assert refusal.value.param == "top_logprobs"


async def test_the_scores_of_a_long_prompt_come_in_portions() -> None:
    tokens = (68,) * (3 * LOGPROBS_AT_ONCE + 1)
    turn = await start(ScriptedEngine(ScriptedMarkup()), RawPrompt(tokens=tokens, echo=True))
    counts = [
        len(delta.logprobs)
        async for batch in turn
        for delta in batch
        if isinstance(delta, TextDelta)
    ]
    assert counts[:4] == [LOGPROBS_AT_ONCE] * 3 + [1]


async def test_a_prompt_that_needs_too_many_steps_is_refused() -> None:
    with pytest.raises(RequestError, match=str(MAX_STEPS)):
        await start(UnscoringEngine(), RawPrompt(tokens=(68,) * (MAX_STEPS + 1), echo=True))
