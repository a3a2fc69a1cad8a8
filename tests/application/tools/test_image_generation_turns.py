"""Turns of image generation in both formats: each prompt goes on where the last one ended."""

from __future__ import annotations

import pytest
from tests.application.conftest import House
from tests.application.fake_images import FakeImageGenerator
from tests.application.tools.test_web_search_turns import (
    FORMATS,
    RecordedEngine,
    prompts_continue,
    script_of,
)

from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.application.model.token_model import TokenModel
from antiphon.application.tools.image_generation import ImageGenerationProvider
from antiphon.domain import items as i
from antiphon.domain.json import Json

TOOL: Json = {"type": "image_generation", "partial_images": 1}
SCRIPT_TURNS = [
    [{"think": "Let me draw."}, {"call": "image_generation", "args": {"prompt": 'A "cat" 🐈.'}}],
    {"call": "image_generation", "args": {"prompt": "Bluer.", "action": "edit"}},
    [{"say": "One moment."}, {"call": "image_generation", "args": {"prompt": "@@fail No."}}],
    {"say": "Here."},
]


@pytest.fixture(params=FORMATS)
def engine(request: pytest.FixtureRequest) -> RecordedEngine:
    return RecordedEngine(FORMATS[request.param][1]())


@pytest.fixture(name="house")
async def house_fixture(engine: RecordedEngine, request: pytest.FixtureRequest) -> House:
    turn_format = FORMATS[request.node.callspec.params["engine"]][0]()
    model = TokenModel(lambda: turn_format, engine)
    await model.start()
    provider = ImageGenerationProvider(FakeImageGenerator(), MemoryFileStore())
    return House(model=model, hosted=[provider])


async def test_each_prompt_begins_with_the_last_one_and_its_output(
    house: House, engine: RecordedEngine
) -> None:
    response = await house.whole(input=script_of(*SCRIPT_TURNS), tools=[TOOL])
    calls = [item for item in response.output if isinstance(item, i.ImageGenerationCall)]
    assert [call.status for call in calls] == ["completed", "completed", "failed"]
    assert len(engine.turns) == len(SCRIPT_TURNS)
    assert prompts_continue(engine) == [True, True, True]


@pytest.mark.parametrize("action", ["generate", "auto"])
async def test_a_later_response_repeats_the_same_tokens(
    house: House, engine: RecordedEngine, action: str
) -> None:
    function = {"type": "function", "name": "f"}
    tools = [{**TOOL, "action": action}, function]
    first = await house.whole(input=script_of(SCRIPT_TURNS[0], {"call": "f"}), tools=tools)
    call = first.output[-1]
    assert isinstance(call, i.FunctionCall)
    await house.whole(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "ok"}],
        tools=tools,
        previous_response_id=first.id,
    )
    assert len(engine.turns) == 3
    assert all(prompts_continue(engine))


async def test_a_model_that_reads_images_is_shown_what_was_made(
    house: House, engine: RecordedEngine, request: pytest.FixtureRequest
) -> None:
    turns = {"call": "image_generation", "args": {"prompt": "A cat."}}, {"say": "Here."}
    response = await house.whole(input=script_of(*turns), tools=[TOOL])
    made = response.output[0]
    assert isinstance(made, i.ImageGenerationCall)
    before, after = engine.prompts
    reads_images = request.node.callspec.params["engine"] == "chat"
    shown = [f"data:image/png;base64,{made.result}"] if reads_images else []
    assert (list(before.image_urls), list(after.image_urls)) == ([], shown)
