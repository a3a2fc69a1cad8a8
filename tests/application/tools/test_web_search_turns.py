"""Turns of web search in both formats: each prompt continues exactly where the last one ended."""

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
from antiphon.application.ports import EngineRequest, Prompt, Step
from antiphon.application.tools.web_search import WebSearchProvider
from antiphon.domain import items as i

FORMATS: dict[str, tuple[Callable[[], Any], type[Any]]] = {
    "chat": (scripted_chat, ScriptedMarkup),
    "harmony": (HarmonyFormat, HarmonyMarkup),
}
SCRIPT_TURNS = [
    [{"think": "Let me see."}, {"call": "browser.search", "args": '{"query":  "bees"}'}],
    {"call": "browser.open", "args": {"id": 0, "cursor": -1}},
    [{"think": "More."}, {"say": "One moment."}, {"call": "browser.find", "args": "nonsense"}],
    {"call": "browser.open", "args": {"id": "https://none.example/"}},
    {"call": "browser.search", "args": {"query": "broken"}},
    {"say": "See 【1†L0】."},
]


class RecordedEngine(ScriptedEngine):
    """Records each prompt, its tokens, and those of the output that follows it."""

    def __init__(self, markup: Any) -> None:
        super().__init__(markup, ("m",))
        self.turns: list[tuple[list[int], list[int]]] = []
        self.prompts: list[Prompt] = []

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step]:
        output: list[int] = []
        self.turns.append((list(request.prompt.token_ids), output))
        self.prompts.append(request.prompt)
        steps = await super().generate(request)

        async def record() -> AsyncGenerator[Step]:
            async for step in steps:
                output.extend(step.token_ids)
                yield step

        return record()


@pytest.fixture(params=FORMATS)
def engine(request: pytest.FixtureRequest) -> RecordedEngine:
    return RecordedEngine(FORMATS[request.param][1]())


@pytest.fixture
async def house(engine: RecordedEngine, request: pytest.FixtureRequest) -> House:
    turn_format = FORMATS[request.node.callspec.params["engine"]][0]()
    model = TokenModel(lambda: turn_format, engine)
    await model.start()
    return House(model=model, hosted=[WebSearchProvider(FakeWeb())])


def script_of(*turns: Any) -> str:
    return f"@@script {json.dumps(turns)}"


def prompts_continue(engine: RecordedEngine) -> list[bool]:
    pairs = zip(engine.turns, engine.turns[1:], strict=False)
    return [
        later[: len(prompt + output)] == prompt + output for (prompt, output), (later, _) in pairs
    ]


async def test_each_prompt_begins_with_the_last_one_and_its_output(
    house: House, engine: RecordedEngine
) -> None:
    response = await house.whole(
        input=script_of(*SCRIPT_TURNS), tools=[{"type": "web_search"}], max_tool_calls=4
    )
    calls = [item for item in response.output if isinstance(item, i.WebSearchCall)]
    statuses = ["completed", "completed", "failed", "failed", "failed"]
    assert [call.status for call in calls] == statuses
    assert "max_tool_calls" in calls[-1].results[0]["text"]  # type: ignore[index]
    assert response.output[-1].content[0].annotations[0].url == "https://a.example/"  # type: ignore[union-attr, index]
    assert len(engine.turns) == len(SCRIPT_TURNS)
    assert all(prompts_continue(engine))


async def test_a_later_response_repeats_the_same_tokens(
    house: House, engine: RecordedEngine
) -> None:
    tools = [{"type": "web_search"}]
    script_turns = [*SCRIPT_TURNS[1:3], SCRIPT_TURNS[0], {"call": "f"}]
    function = {"type": "function", "name": "f"}
    first = await house.whole(input=script_of(*script_turns), tools=[*tools, function])
    call = first.output[-1]
    assert isinstance(call, i.FunctionCall)
    await house.whole(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "ok"}],
        tools=[*tools, function],
        previous_response_id=first.id,
    )
    assert len(engine.turns) == 5
    assert all(prompts_continue(engine))
