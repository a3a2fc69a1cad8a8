"""How likely a real model finds the tokens of a prompt: as likely as when it writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.adapters.engines.llama import LlamaEngine, LlamaOptions
from antiphon.adapters.formats.chat_template.format import load
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Sampling, Turn
from antiphon.domain.deltas import TextDelta
from antiphon.domain.requests.request import RawPrompt

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

START = "The capital of France is"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(weights: Path) -> AsyncIterator[TokenModel]:
    options = LlamaOptions(
        model=str(weights), context_length=512, slots=1, threads=1, repeatable=True
    )
    engine = LlamaEngine(["smollm2"], options)

    def make_format() -> object:
        assert engine.model_folder is not None
        return load(engine.model_folder)

    model = TokenModel(make_format, engine)  # type: ignore[arg-type]
    await model.start()
    yield model
    await model.aclose()


async def run(model: TokenModel, raw: RawPrompt, sampling: Sampling, name: str) -> list[TextDelta]:
    turn = Turn(model="smollm2", items=(), raw_prompt=raw, sampling=sampling)
    started = await model.start_turn(turn, request_id=name)
    return [
        delta
        async for deltas in started
        for delta in deltas
        if isinstance(delta, TextDelta) and (delta.text or delta.logprobs)
    ]


async def test_a_prompt_is_as_likely_as_when_the_model_writes_it(model: TokenModel) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=12, logprobs=2)
    written = await run(model, RawPrompt(text=START), sampling, "written")
    text = "".join(delta.text for delta in written)
    likely = [entry for delta in written for entry in delta.logprobs]
    assert text.startswith(" Paris")
    raw = RawPrompt(text=START + text, echo=True, echo_only=True)
    sampling = Sampling(temperature=0.0, max_tokens=1, logprobs=2, prompt_logprobs=2)
    [echoed] = await run(model, raw, sampling, "echoed")
    assert echoed.text == START + text
    assert "".join(entry.token for entry in echoed.logprobs) == START + text
    for entry, known in zip(echoed.logprobs[-len(likely) :], likely, strict=True):
        assert entry.token == known.token
        assert entry.logprob == pytest.approx(known.logprob, abs=1e-4)
        assert [top.token for top in entry.top_logprobs] == [
            top.token for top in known.top_logprobs
        ]


async def test_what_is_true_is_likelier(model: TokenModel) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=1, logprobs=1, prompt_logprobs=1)
    scores = {}
    for end in (" Paris", " Berlin", " banana"):
        raw = RawPrompt(text=START + end, echo=True, echo_only=True)
        [echoed] = await run(model, raw, sampling, f"scored{end.strip()}")
        scores[end] = sum(entry.logprob for entry in echoed.logprobs[5:])
    assert scores[" Paris"] > scores[" Berlin"] > scores[" banana"]
