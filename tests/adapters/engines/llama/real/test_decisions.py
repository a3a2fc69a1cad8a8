"""Decisions of a real model: the probabilities are those of its whole distribution."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio
from msgspec import Raw

from antiphon.adapters.engines.llama import LlamaEngine, LlamaOptions
from antiphon.adapters.formats.chat_template.format import load
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Turn
from antiphon.domain.items import Item
from antiphon.domain.kinds.message import Message
from antiphon.domain.requests.decisions import NewDecision, normalize, options_of, request_of

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TALE = "The parcel came late, it was broken, and nobody answers my mails. I want my money back! "
QUESTIONS = [
    {"type": "predicate", "instructions": "The customer is angry."},
    {"type": "predicate", "instructions": "The customer praises the shop."},
    {
        "type": "choice",
        "instructions": "Which team should answer?",
        "choices": [{"value": name} for name in ("sales", "billing", "shipping", "a lawyer")],
    },
    {
        "type": "choice",
        "instructions": "Which number fits best?",
        "choices": [{"value": f"number {number}"} for number in range(60)],
    },
    {
        "type": "score",
        "instructions": "How urgent is it?",
        "levels": [{"label": "not at all"}, {"label": "a little"}, {"label": "very"}],
    },
]
_ids = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(weights: Path) -> AsyncIterator[LlamaEngine]:
    options = LlamaOptions(
        model=str(weights), context_length=2048, slots=1, threads=1, repeatable=True
    )
    engine = LlamaEngine(["smollm2"], options)
    yield engine
    await engine.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(engine: LlamaEngine) -> TokenModel:
    def make_format() -> object:
        assert engine.model_folder is not None
        return load(engine.model_folder)

    model = TokenModel(make_format, engine)  # type: ignore[arg-type]
    await model.start()
    return model


def turn_of(question: object, labels: Sequence[str], given: str = TALE) -> Turn:
    body = {"model": "smollm2", "input": given, "questions": [question]}
    asked = request_of(msgspec.convert(body, NewDecision), labels)
    items: list[Item] = [
        msgspec.json.decode(raw, type=Message) for raw in asked.input if isinstance(raw, Raw)
    ]
    return Turn(model="smollm2", items=items, effort="none", begins_answer=True)


def count_of(question: object) -> int:
    body = {"model": "smollm2", "input": "", "questions": [question]}
    [asked] = msgspec.convert(body, NewDecision).questions
    return len(options_of(asked))


def logs_of_all_tokens(engine: LlamaEngine, prompt: Sequence[int]) -> Mapping[int | None, float]:
    """Ask llama.cpp for its whole distribution, which nothing has changed."""
    member = engine._pool.idlest(tried=())
    assert member is not None
    assert engine._process is not None
    answer = httpx.post(
        f"{member.client.url.rstrip('/')}/completion",
        headers=dict(engine._process.headers),
        json={"prompt": prompt, "n_predict": 1, "n_probs": 49_152, "cache_prompt": False},
        timeout=60,
    )
    [position] = answer.json()["completion_probabilities"]
    return {each["id"]: each["logprob"] for each in position["top_logprobs"]}


@pytest.mark.parametrize("question", QUESTIONS, ids=range(len(QUESTIONS)))
async def test_each_probability_is_that_of_the_whole_distribution(
    model: TokenModel, engine: LlamaEngine, question: object
) -> None:
    labels = await model.labels(count_of(question))
    turn = turn_of(question, labels)
    weights = await model.weigh(turn, labels, request_id=f"run_{next(_ids)}")
    found = normalize(weights.logs)

    prompt = await model._format.render(turn)
    tokens = model._format.first_tokens(prompt, labels)
    logs = await asyncio.to_thread(logs_of_all_tokens, engine, list(prompt.token_ids))
    assert found == pytest.approx(normalize([logs[token] for token in tokens]), abs=1e-4)
    assert (weights.usage.input, weights.usage.output) == (len(prompt.token_ids), 1)


async def test_what_questions_share_is_computed_once(model: TokenModel) -> None:
    labels = await model.labels(2)
    turns = [turn_of(question, labels, TALE * 20) for question in QUESTIONS[:2]]
    runs = [await model.weigh(turn, labels, request_id=f"run_{next(_ids)}") for turn in turns]
    shared = runs[1].usage
    assert shared.cached > shared.input - 60 > 300
