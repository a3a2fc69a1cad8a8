"""Anthropic's SDK for Python, unmodified: messages, streams, tools, objects, counts and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

pytestmark = pytest.mark.clients
Script = Callable[..., str]

anthropic: Any = pytest.importorskip("anthropic")


class Town(BaseModel):
    city: str
    population: int


BONN = Town(city="Bonn", population=3)
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def look(city: str) -> dict[str, Any]:
    return {"call": "get_weather", "args": {"city": city}}


def client_of(server: Any, **options: Any) -> Any:
    given = {"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 30}
    return anthropic.Anthropic(**{**given, **options})


@pytest.fixture
def sdk(server: Any) -> Iterator[Any]:
    with client_of(server) as client:
        yield client


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_the_sdk_reads_a_message_strictly(sdk: Any, model: str, script: Script) -> None:
    asked = user(script([{"think": "hm"}, {"say": "one two"}]))
    message = sdk.messages.create(model=model, max_tokens=1000, messages=asked, system="Be brief.")
    anthropic.types.Message.model_validate(json.loads(message.to_json()), strict=True)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert (message.content[-1].text, message.stop_reason) == ("one two", "end_turn")
    assert message._request_id


def test_the_sdk_assembles_a_stream(sdk: Any, model: str, script: Script) -> None:
    asked = user(script([{"think": "hm"}, {"say": "one two three"}]))
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with sdk.messages.stream(
        model=model, max_tokens=4000, messages=asked, thinking=thinking
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert {"text", "thinking", "signature", "message_start", "message_stop"} <= set(kinds)
    thought, text = final.content
    assert (thought.thinking, text.text) == ("hm", "one two three")
    assert thought.signature
    assert final.usage.output_tokens > 0
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens > 0


def test_the_sdk_loops_over_calls(sdk: Any, model: str, script: Script) -> None:
    asked = user(script([look("Oslo"), look("Rome")], {"say": "both"}))
    with sdk.messages.stream(
        model=model, max_tokens=1000, messages=asked, tools=[WEATHER]
    ) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.input["city"] for call in calls] == ["Oslo", "Rome"]
    results: Any = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "20C"} for call in calls
    ]
    messages = [
        *asked,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    second = sdk.messages.create(model=model, max_tokens=1000, messages=messages, tools=[WEATHER])
    assert second.content[-1].text == "both"


@pytest.mark.parametrize("streams", [False, True])
def test_the_sdk_runs_tools(sdk: Any, model: str, script: Script, streams: bool) -> None:
    cities: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: Its name.
        """
        cities.append(city)
        return f"{city}: 20C"

    asked = user(script([{"think": "t"}, look("Oslo")], look("Rome"), {"say": "both"}))
    runner = sdk.beta.messages.tool_runner(
        model=model, max_tokens=1000, messages=asked, tools=[get_weather], stream=streams
    )
    last = runner.until_done()
    assert cities == ["Oslo", "Rome"]
    assert last.content[-1].text == "both"


def test_the_sdk_parses_an_object(sdk: Any, model: str, script: Script) -> None:
    asked = user(script({"say": BONN.model_dump_json()}))
    parsed = sdk.messages.parse(model=model, max_tokens=1000, messages=asked, output_format=Town)
    assert parsed.parsed_output == BONN


def test_the_sdk_counts_and_lists(sdk: Any, model: str) -> None:
    counted = sdk.messages.count_tokens(model=model, messages=user("One two three."))
    assert counted.input_tokens > 0
    listed = {each.id: each for each in sdk.models.list(limit=1)}  # page by page
    assert model in listed
    assert sdk.models.retrieve(model) == listed[model]
    assert listed[model].created_at.year >= 2025


def test_the_sdk_raises_its_own_errors(server: Any, sdk: Any, script: Script) -> None:
    hi: Any = {"model": "scripted", "max_tokens": 9, "messages": user("hi")}
    with pytest.raises(anthropic.BadRequestError, match="temperature") as wrong:
        sdk.messages.create(**hi, extra_body={"temperature": 9})
    assert wrong.value.type == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        sdk.messages.create(**{**hi, "messages": []})
    with pytest.raises(anthropic.NotFoundError):
        sdk.models.retrieve("nobody")
    with pytest.raises(anthropic.NotFoundError):
        sdk.messages.batches.list()
    asked = user(script([{"say": "x"}, {"fail": "server_error"}]))
    with pytest.raises(anthropic.InternalServerError):
        sdk.messages.create(**{**hi, "messages": asked, "max_tokens": 99})
    failing = {**hi, "messages": asked, "max_tokens": 99}
    with pytest.raises(anthropic.APIStatusError), sdk.messages.stream(**failing) as stream:
        stream.get_final_message()


@pytest.mark.asyncio
async def test_the_asynchronous_client_streams(server: Any, model: str, script: Script) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=30
    ) as sdk:
        asked = user(script({"say": "one two"}))
        async with sdk.messages.stream(model=model, max_tokens=99, messages=asked) as stream:
            pieces = [text async for text in stream.text_stream]
    assert "".join(pieces) == "one two"
