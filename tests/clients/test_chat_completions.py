"""Clients that speak Chat Completions: OpenAI's SDK, LangChain and Pydantic AI."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import pytest
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient, OpenAI
from pydantic import BaseModel

pytestmark = pytest.mark.clients
Script = Callable[..., str]


class Town(BaseModel):
    city: str
    population: int


BONN = Town(city="Bonn", population=3)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: 20C"


def look(city: str) -> dict[str, Any]:
    return {"call": "get_weather", "args": {"city": city}}


# --- OpenAI's SDK ---------------------------------------------------------------------------------


def test_the_sdk_assembles_a_stream(client: OpenAI, model: str, script: Script) -> None:
    asked: Any = [{"role": "user", "content": script([{"think": "hm"}, {"say": "one two"}])}]
    options: Any = {"include_usage": True}
    with client.chat.completions.stream(
        model=model, messages=asked, stream_options=options
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.delta") > 1
    assert kinds[-1] == "chunk"  # of the usage
    assert final.choices[0].message.content == "one two"
    assert final.usage is not None


def test_the_sdk_parses_an_object(client: OpenAI, model: str, script: Script) -> None:
    asked: Any = [{"role": "user", "content": script({"say": BONN.model_dump_json()})}]
    parsed = client.chat.completions.parse(model=model, messages=asked, response_format=Town)
    assert parsed.choices[0].message.parsed == BONN


def test_the_sdk_loops_over_calls(client: OpenAI, model: str, script: Script) -> None:
    turns = [look("Oslo"), look("Rome")], {"say": "both"}
    messages: list[Any] = [{"role": "user", "content": script(*turns)}]
    first = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
    assert first.choices[0].finish_reason == "tool_calls"
    answer = first.choices[0].message
    messages += [
        answer,
        *(
            {"role": "tool", "tool_call_id": c.id, "content": "20C"}
            for c in answer.tool_calls or ()
        ),
    ]
    second = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == "both"


def test_the_sdk_raises_the_error_of_a_stream(client: OpenAI, script: Script) -> None:
    asked: Any = [{"role": "user", "content": script([{"say": "x"}, {"fail": "server_error"}])}]
    with pytest.raises(APIError, match="server_error"):
        list(client.chat.completions.create(model="scripted", messages=asked, stream=True))


# --- LangChain ------------------------------------------------------------------------------------


def test_langchain_streams_and_calls_tools(server: Any, model: str, script: Script) -> None:
    langchain: Any = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage

    chat = langchain.ChatOpenAI(
        model=model,
        base_url=server.api,
        api_key="none",
        use_responses_api=False,
        stream_usage=True,
        max_retries=0,
        timeout=30,
    )
    written: Any = reduce(add, chat.stream(script([{"think": "hm"}, {"say": "one two"}])))
    assert written.text == "one two"
    assert written.usage_metadata["total_tokens"] > 0
    asked = HumanMessage(script([look("Oslo"), look("Rome")], {"say": "both"}))
    with_tools = chat.bind_tools([get_weather])
    called: Any = reduce(add, with_tools.stream([asked]))
    outputs = [
        ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
        for call in called.tool_calls
    ]
    assert len(outputs) == 2
    assert with_tools.invoke([asked, called, *outputs]).text == "both"
    as_object = chat.with_structured_output(Town)
    assert as_object.invoke(script({"say": BONN.model_dump_json()})) == BONN


# --- Pydantic AI ----------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_pydantic_ai_streams_and_calls_tools(server: Any, model: str, script: Script) -> None:
    pydantic_ai: Any = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with DefaultAsyncHttpxClient() as http:
        sdk = AsyncOpenAI(base_url=server.api, api_key="none", http_client=http, max_retries=0)
        served = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=sdk))
        said = "one two three"
        asked = script([{"think": "hm"}, {"say": said}])
        async with pydantic_ai.Agent(served).run_stream(asked) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        assert "".join(pieces) == said
        parts = [part for message in result.all_messages() for part in message.parts]
        assert [part.content for part in parts if part.part_kind == "thinking"] == ["hm"]
        turns = [{"think": "two"}, look("Oslo"), look("Rome")], {"say": "both"}
        agent = pydantic_ai.Agent(served, tools=[get_weather])
        assert (await agent.run(script(*turns))).output == "both"
        as_object = pydantic_ai.Agent(served, output_type=pydantic_ai.NativeOutput(Town))
        assert (await as_object.run(script({"say": BONN.model_dump_json()}))).output == BONN
