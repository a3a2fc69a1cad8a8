"""A model that fails before it has shown anything is replaced by the next one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.application.model.fallback import FallbackModel
from antiphon.application.model.supervision import SupervisedModel
from antiphon.application.ports import Model
from antiphon.domain.errors import (
    ConcurrencyLimitExceeded,
    EngineDead,
    EngineError,
    RequestError,
    ServerOverloaded,
)

from .scripted_models import FlakyEngine, model_on, play, text_of


class Chain:
    """A model `a` that falls back on `b` and `c`, and their engines."""

    def __init__(self) -> None:
        self.engines = [FlakyEngine(name) for name in "abc"]
        self.models = [SupervisedModel(model_on(engine)) for engine in self.engines]
        self.model: Model = FallbackModel(self.models)

    @property
    def begun(self) -> list[int]:
        return [engine.begun for engine in self.engines]


@pytest.fixture
async def chain() -> Chain:
    chain = Chain()
    for model in chain.models:
        await model.start()
    return chain


async def test_the_first_model_answers_while_it_works(chain: Chain) -> None:
    assert await text_of(chain.model, play({"say": "hello"})) == "hello"
    assert chain.begun == [1, 0, 0]
    assert chain.model.names == ("a",)


@pytest.mark.parametrize(
    "failure", [EngineDead("gone"), EngineError("broken"), ServerOverloaded("full")]
)
async def test_a_model_that_admits_no_turn_is_replaced(chain: Chain, failure: Exception) -> None:
    chain.engines[0].refusal = failure
    assert await text_of(chain.model, play({"say": "hello"})) == "hello"
    assert chain.begun == [0, 1, 0]


async def test_each_model_is_tried_in_order(chain: Chain) -> None:
    for engine in chain.engines[:2]:
        engine.refusal = EngineError("broken")
    assert await text_of(chain.model, play({"say": "hello"})) == "hello"
    assert chain.begun == [0, 0, 1]


async def test_a_model_that_has_not_started_is_passed_over(chain: Chain) -> None:
    unstarted = SupervisedModel(model_on(FlakyEngine("x")))
    model = FallbackModel([unstarted, chain.models[1]])
    assert model.context_length == chain.models[1].context_length
    assert model.efforts == chain.models[1].efforts
    assert await model.count(play({"say": "hello"}, model="x")) > 0
    assert await text_of(model, play({"say": "hello"}, model="x")) == "hello"
    with pytest.raises(EngineDead):  # its own state is told under its name
        await model.check()


async def test_if_all_fail_the_error_is_that_of_the_first(chain: Chain) -> None:
    for engine in chain.engines:
        engine.refusal = EngineError(f"{engine.models[0]} is broken")
    with pytest.raises(EngineError, match="a is broken"):
        await text_of(chain.model, play({"say": "hello"}))


async def test_a_turn_that_fails_before_its_first_delta_begins_again(chain: Chain) -> None:
    # The script lets each model fail, so the last error is seen, and each has been tried.
    with pytest.raises(EngineError):
        await text_of(chain.model, play({"fail": "server_error"}))
    assert chain.begun == [1, 1, 1]


async def test_a_turn_that_fails_after_its_first_delta_fails(chain: Chain) -> None:
    with pytest.raises(EngineError) as failed:
        await text_of(chain.model, play({"say": "so far"}, {"fail": "server_error"}))
    assert failed.value.__notes__ == ["so far"]
    assert chain.begun == [1, 0, 0]


async def test_a_request_that_the_first_model_refuses_is_refused(chain: Chain) -> None:
    with pytest.raises(RequestError, match="cannot be played"):
        await text_of(chain.model, play({"die": False}))
    assert chain.begun == [0, 0, 0]


async def test_a_prompt_is_admitted_once(chain: Chain) -> None:
    admitted: list[int] = []

    async def admit(tokens: int) -> None:
        admitted.append(tokens)

    chain.engines[0].refusal = EngineError("broken")
    turn: Any = await chain.model.start_turn(play({"say": "hi"}), request_id="r", admit=admit)
    await turn.aclose()
    assert len(admitted) == 1


async def test_a_prompt_that_is_not_admitted_reaches_no_other_model(chain: Chain) -> None:
    async def admit(_tokens: int) -> None:
        raise ConcurrencyLimitExceeded("too many of your requests wait")

    with pytest.raises(ConcurrencyLimitExceeded):
        await chain.model.start_turn(play({"say": "hi"}), request_id="r", admit=admit)
    assert chain.begun == [0, 0, 0]


async def test_a_decision_is_weighed_by_the_first_model_that_works(chain: Chain) -> None:
    chain.engines[0].refusal = EngineError("broken")
    labels = await chain.model.labels(2)
    turn = replace(play({"say": "any"}), begins_answer=True)
    weights = await chain.model.weigh(turn, labels, request_id="decision_1")
    assert len(weights.logs) == 2
    assert chain.begun == [0, 1, 0]


async def test_a_decision_that_every_model_fails_has_the_first_failure(chain: Chain) -> None:
    for engine in chain.engines:
        engine.refusal = EngineError(f"broken {engine.models[0]}")
    turn = replace(play({"say": "any"}), begins_answer=True)
    with pytest.raises(EngineError, match="broken a"):
        await chain.model.weigh(turn, ["A", "B"], request_id="decision_1")


async def test_a_refused_decision_is_not_asked_again(chain: Chain) -> None:
    chain.engines[0].refusal = RequestError("no")
    turn = replace(play({"say": "any"}), begins_answer=True)
    with pytest.raises(RequestError, match="no"):
        await chain.model.weigh(turn, ["A", "B"], request_id="decision_1")
    assert chain.begun == [0, 0, 0]
