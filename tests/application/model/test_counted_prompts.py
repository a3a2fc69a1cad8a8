"""A prompt that was counted, for a limit or a budget, is not rendered again for its turn."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from tests.application.model.scripted_models import FlakyEngine, play, text_of

from antiphon.adapters.formats.chat_template import scripted_chat
from antiphon.application.model.counted_prompts import CountedPrompts
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Format, Prompt, Turn
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError


class RenderCounter:
    """A format that counts how often it renders."""

    def __init__(self, inner: Format) -> None:
        self._inner = inner
        self.renders = 0

    async def render(self, turn: Turn) -> Prompt:
        self.renders += 1
        return await self._inner.render(turn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def counter() -> RenderCounter:
    return RenderCounter(scripted_chat())


@pytest.fixture
async def model(counter: RenderCounter) -> TokenModel:
    model = TokenModel(lambda: counter, FlakyEngine("a"))  # type: ignore[arg-type, return-value]
    await model.start()
    return model


async def test_a_counted_turn_is_rendered_once(model: TokenModel, counter: RenderCounter) -> None:
    turn = play({"say": "Hi"})
    assert await model.count(turn) > 0
    assert await text_of(model, turn) == "Hi"
    assert counter.renders == 1


async def test_a_turn_that_starts_again_is_rendered_again(
    model: TokenModel, counter: RenderCounter
) -> None:
    turn = play({"say": "Hi"})
    await model.count(turn)
    assert [await text_of(model, turn) for _ in range(2)] == ["Hi", "Hi"]
    assert counter.renders == 2


async def test_another_turn_is_rendered_anew(model: TokenModel, counter: RenderCounter) -> None:
    counted = play({"say": "one"})
    await model.count(counted)
    assert await text_of(model, play({"say": "two"})) == "two"
    assert counter.renders == 2


async def test_a_counted_turn_that_is_too_long_is_refused(model: TokenModel) -> None:
    turn = play({"say": "Hi"}, instructions="word " * 140_000)
    assert await model.count(turn) > model.context_length
    with pytest.raises(RequestError) as refused:
        await model.start_turn(turn, request_id="run")
    assert refused.value.code == CONTEXT_EXCEEDED


def test_a_prompt_is_dropped_with_its_turn() -> None:
    prompts, turn = CountedPrompts(), play({"say": "Hi"})
    prompts.keep(turn, Prompt(token_ids=[1]))
    assert len(prompts) == 1
    del turn
    gc.collect()
    assert len(prompts) == 0


def test_a_prompt_is_taken_once() -> None:
    prompts, turn, prompt = CountedPrompts(), play({"say": "Hi"}), Prompt(token_ids=[1])
    prompts.keep(turn, prompt)
    assert prompts.take(play({"say": "Hi"})) is None
    assert prompts.take(turn) is prompt
    assert prompts.take(turn) is None
