"""LangChain's ChatOpenAI with its Responses API, and LangChain's agent on top of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any

import pytest
from pydantic import BaseModel

langchain: Any = pytest.importorskip(
    "langchain_openai", reason="make test-clients installs langchain-openai"
)
pytestmark = pytest.mark.clients
Script = Callable[..., str]


class Place(BaseModel):
    city: str
    population: int


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 20C"


@pytest.fixture
def chat(server: Any, model: str) -> Callable[..., Any]:
    """Make a chat model of the running server."""
    return partial(
        langchain.ChatOpenAI,
        model=model,
        base_url=server.api,
        api_key="none",
        use_responses_api=True,
        max_retries=0,
        timeout=30,
    )


def look(city: str) -> dict[str, Any]:
    return {"call": "get_weather", "args": {"city": city}}


def whole(chunks: Any) -> Any:
    return reduce(add, chunks)


def answer_calls(asked: Any) -> list[Any]:
    """Run the tools that a message calls."""
    from langchain_core.messages import ToolMessage

    return [
        ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
        for call in asked.tool_calls
    ]


def test_a_message_is_answered(chat: Any, script: Script) -> None:
    answer = chat(temperature=0.2).invoke([("system", "Be kind."), ("user", script({"say": "hi"}))])
    assert answer.text == "hi"
    assert answer.usage_metadata["total_tokens"] > 0
    assert answer.response_metadata["status"] == "completed"


def test_a_streamed_message_is_the_whole_one(chat: Any, script: Script) -> None:
    asked = script([{"think": "hm"}, {"say": "one two three"}])
    chunks = list(chat().stream(asked, reasoning={"summary": "auto"}))
    assert len(chunks) > 4
    assert whole(chunks).text == "one two three"


@pytest.mark.asyncio(loop_scope="module")  # the client keeps its connections for a base URL
async def test_tokens_are_streamed_to_async_readers(chat: Any, script: Script) -> None:
    written = [chunk.text async for chunk in chat().astream(script({"say": "a b c d"}))]
    assert "".join(written) == "a b c d"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"use_previous_response_id": True},
        {"store": False, "include": ["reasoning.encrypted_content"]},
    ],
    ids=["history", "previous_response", "sealed"],
)
def test_parallel_calls_go_round(
    chat: Any, script: Script, kept: dict[str, Any], streamed: bool
) -> None:
    turns = [{"think": "two"}, look("Oslo"), look("Rome")], {"say": "both"}
    bound = chat(**kept).bind_tools([get_weather])
    history: list[Any] = [("user", script(*turns))]
    asked = whole(bound.stream(history)) if streamed else bound.invoke(history)
    assert [call["args"]["city"] for call in asked.tool_calls] == ["Oslo", "Rome"]
    assert bound.invoke([*history, asked, *answer_calls(asked)]).text == "both"


@pytest.mark.parametrize(
    ("method", "turn"),
    [
        ("json_schema", {"say": '{"city": "Bonn", "population": 3}'}),
        ("function_calling", {"call": "Place", "args": {"city": "Bonn", "population": 3}}),
    ],
)
def test_an_answer_is_an_object(chat: Any, script: Script, method: str, turn: Any) -> None:
    typed = chat().with_structured_output(Place, method=method)
    assert typed.invoke(script(turn)) == Place(city="Bonn", population=3)


def test_an_agent_runs_its_loop(chat: Any, script: Script) -> None:
    from langchain.agents import create_agent

    asked = script(look("Oslo"), look("Rome"), {"say": "both"})
    result = create_agent(chat(), [get_weather]).invoke({"messages": [("user", asked)]})
    assert result["messages"][-1].text == "both"
    assert [m.content for m in result["messages"] if m.type == "tool"] == ["Oslo: 20C", "Rome: 20C"]
