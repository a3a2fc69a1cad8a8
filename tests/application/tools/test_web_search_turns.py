"""Rounds of web search on both formats: each prompt goes on exactly where the last one ended."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from tests.application.conftest import House
from tests.application.fake_web import FakeWeb

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import EngineRequest, Step
from antiphon.application.tools.web_search import WebSearchProvider
from antiphon.domain import items as i

FORMATS: dict[str, tuple[Callable[[], Any], type[Any]]] = {
    "chat": (scripted_chat, ScriptedMarkup),
    "harmony": (HarmonyFormat, HarmonyMarkup),
}
ROUNDS = [
    [{"think": "Let me see."}, {"call": "browser.search", "args": '{"query":  "bees"}'}],
    {"call": "browser.open", "args": {"id": 0, "cursor": -1}},
    [{"think": "More."}, {"say": "One moment."}, {"call": "browser.find", "args": "nonsense"}],
    {"call": "browser.open", "args": {"id": "https://none.example/"}},
    {"call": "browser.search", "args": {"query": "broken"}},
    {"say": "See 【1†L0】."},
]


class RecordedEngine(ScriptedEngine):
    """Keeps the tokens of each prompt, and what was written after it."""

    def __init__(self, markup: Any) -> None:
        super().__init__(markup, ("m",))
        self.turns: list[tuple[list[int], list[int]]] = []

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step]:
        written: list[int] = []
        self.turns.append((list(request.prompt.token_ids), written))
        steps = await super().generate(request)

        async def recorded() -> AsyncGenerator[Step]:
            async for step in steps:
                written.extend(step.token_ids)
                yield step

        return recorded()


@pytest.fixture(params=FORMATS)
def engine(request: pytest.FixtureRequest) -> RecordedEngine:
    return RecordedEngine(FORMATS[request.param][1]())


@pytest.fixture
async def searching(engine: RecordedEngine, request: pytest.FixtureRequest) -> House:
    made = FORMATS[request.node.callspec.params["engine"]][0]()
    model = TokenModel(lambda: made, engine)
    await model.start()
    return House(model=model, hosted=[WebSearchProvider(FakeWeb())])


def asked(*turns: Any) -> str:
    return f"@@script {json.dumps(turns)}"


def continued(engine: RecordedEngine) -> list[bool]:
    pairs = zip(engine.turns, engine.turns[1:], strict=False)
    return [
        later[: len(prompt + output)] == prompt + output for (prompt, output), (later, _) in pairs
    ]


async def test_each_prompt_begins_with_the_last_one_and_its_output(
    searching: House, engine: RecordedEngine
) -> None:
    response = await searching.whole(
        input=asked(*ROUNDS), tools=[{"type": "web_search"}], max_tool_calls=4
    )
    calls = [item for item in response.output if isinstance(item, i.WebSearchCall)]
    statuses = ["completed", "completed", "failed", "failed", "failed"]
    assert [call.status for call in calls] == statuses
    assert "max_tool_calls" in calls[-1].results[0]["text"]  # type: ignore[index]
    assert response.output[-1].content[0].annotations[0].url == "https://a.example/"  # type: ignore[union-attr, index]
    assert len(engine.turns) == len(ROUNDS)
    assert all(continued(engine))


async def test_a_later_response_tells_the_model_the_same(
    searching: House, engine: RecordedEngine
) -> None:
    tools = [{"type": "web_search"}]
    rounds = [*ROUNDS[1:3], ROUNDS[0], {"call": "f"}]
    function = {"type": "function", "name": "f"}
    first = await searching.whole(input=asked(*rounds), tools=[*tools, function])
    call = first.output[-1]
    assert isinstance(call, i.FunctionCall)
    await searching.whole(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "ok"}],
        tools=[*tools, function],
        previous_response_id=first.id,
    )
    assert len(engine.turns) == 5
    assert all(continued(engine))
