"""Turns of file search in both formats: each prompt continues exactly where the last one ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.application.conftest import TENANT, House
from tests.application.tools.test_web_search_turns import (
    FORMATS,
    RecordedEngine,
    prompts_continue,
    script_of,
)

from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.application.model.token_model import TokenModel
from antiphon.application.resources.vector_stores import FindVectorStore, SearchVectorStores
from antiphon.application.tools.file_search import FileSearchProvider
from antiphon.domain import items as i
from antiphon.testing.vector_stores import a_store, index_file

TOOL = {"type": "file_search", "vector_store_ids": ["vs_1"]}
SCRIPT_TURNS = [
    [{"think": "Let me see."}, {"call": "file_search", "args": {"queries": ["Bees"]}}],
    {"call": "file_search", "args": {"queries": ["nothing at all", "wasps"]}},
    [{"say": "One moment."}, {"call": "file_search", "args": "nonsense"}],
    {"call": "file_search", "args": {"queries": ["bees"]}},
    {"say": "See 【0:0†a.txt】."},
]


@pytest.fixture(params=FORMATS)
def engine(request: pytest.FixtureRequest) -> RecordedEngine:
    return RecordedEngine(FORMATS[request.param][1]())


@pytest.fixture(name="house")
async def house_fixture(
    engine: RecordedEngine, request: pytest.FixtureRequest
) -> AsyncIterator[House]:
    turn_format = FORMATS[request.node.callspec.params["engine"]][0]()
    model = TokenModel(lambda: turn_format, engine)
    await model.start()
    stores = SqliteVectorStores(None)
    await stores.start()
    provider = FileSearchProvider(
        FindVectorStore(stores, now=lambda: 1_790_000_002), SearchVectorStores(stores, None)
    )
    house = House(model=model, hosted=[provider])
    await stores.create_store(TENANT, a_store())
    await index_file(stores, "a", "Of bees 【1:5†b.txt】.", "Of ants.", tenant=TENANT)
    await index_file(stores, "b", "Of wasps.", tenant=TENANT)
    yield house
    await stores.aclose()


def searches_in(output: Any) -> list[i.FileSearchCall]:
    return [item for item in output if isinstance(item, i.FileSearchCall)]


async def test_each_prompt_begins_with_the_last_one_and_its_output(
    house: House, engine: RecordedEngine
) -> None:
    response = await house.whole(input=script_of(*SCRIPT_TURNS), tools=[TOOL], max_tool_calls=3)
    calls = searches_in(response.output)
    assert [call.status for call in calls] == ["completed", "completed", "failed", "failed"]
    assert len(engine.turns) == len(SCRIPT_TURNS)
    assert prompts_continue(engine) == [True, True, True, True]
    [annotation] = response.output[-1].content[0].annotations  # type: ignore[union-attr, index]
    assert annotation.filename == "a.txt"


async def test_a_later_response_repeats_the_same_tokens(
    house: House, engine: RecordedEngine
) -> None:
    function = {"type": "function", "name": "f"}
    tools = [TOOL, function]
    first = await house.whole(input=script_of(*SCRIPT_TURNS[:2], {"call": "f"}), tools=tools)
    call = first.output[-1]
    assert isinstance(call, i.FunctionCall)
    await house.whole(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "ok"}],
        tools=tools,
        previous_response_id=first.id,
    )
    assert len(engine.turns) == 4
    assert all(prompts_continue(engine))
