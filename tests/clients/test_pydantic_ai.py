"""Pydantic AI with its model for the Responses API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

pydantic_ai: Any = pytest.importorskip(
    "pydantic_ai", reason="make test-clients installs pydantic-ai-slim"
)
# The client keeps its connections from one agent to the next, so the tests share their loop.
pytestmark = [pytest.mark.clients, pytest.mark.asyncio(loop_scope="module")]
Script = Callable[..., str]


class Place(BaseModel):
    city: str
    population: int


@pytest.fixture
def agent(server: Any, model: str) -> Callable[..., Any]:
    """Make an agent of the running server."""
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=server.api, api_key="none")
    served = OpenAIResponsesModel(model, provider=provider)
    return lambda **given: pydantic_ai.Agent(served, **given)


def get_weather(city: str) -> str:
    return f"{city}: 20C"


def look(city: str) -> dict[str, Any]:
    return {"call": "get_weather", "args": {"city": city}}


async def test_a_streamed_answer_is_written_piece_by_piece(agent: Any, script: Script) -> None:
    said = "one two three four five six"
    asked = script([{"think": "hm"}, {"say": said, "tick": 0.02}])
    async with agent().run_stream(asked) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    assert "".join(pieces) == said


async def test_a_loop_over_parallel_tools_can_be_continued(agent: Any, script: Script) -> None:
    turns = [{"think": "two"}, look("Oslo"), look("Rome")], {"say": "both"}
    reporter = agent(tools=[get_weather], instructions="Be brief.")
    first = await reporter.run(script(*turns))
    second = await reporter.run(script({"say": "more"}), message_history=first.all_messages())
    assert (first.output, second.output) == ("both", "more")
    returns = [
        part for m in first.all_messages() for part in m.parts if part.part_kind == "tool-return"
    ]
    assert [part.content for part in returns] == ["Oslo: 20C", "Rome: 20C"]


async def test_the_server_may_keep_the_history(agent: Any, script: Script) -> None:
    kept = {"openai_previous_response_id": "auto"}
    asked = script(look("Oslo"), {"say": "kept"})
    result = await agent(tools=[get_weather]).run(asked, model_settings=kept)
    assert result.output == "kept"


async def test_an_answer_is_an_object(agent: Any, script: Script) -> None:
    place = Place(city="Bonn", population=3)
    called = script({"call": "final_result", "args": place.model_dump()})
    assert (await agent(output_type=Place).run(called)).output == place
    native = pydantic_ai.NativeOutput(Place)
    said = script({"say": place.model_dump_json()})
    assert (await agent(output_type=native).run(said)).output == place
