"""OpenAI's Agents SDK for Python."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import BaseModel

sdk: Any = pytest.importorskip("agents", reason="make test-clients installs openai-agents")
pytestmark = pytest.mark.clients
Script = Callable[..., str]


class Place(BaseModel):
    city: str
    population: int


@pytest.fixture
def asked() -> list[str]:
    """The cities whose weather the agent looked up."""
    return []


@pytest.fixture
async def agent(server: Any, model: str, asked: list[str]) -> AsyncIterator[Callable[..., Any]]:
    """Make an agent of the running server; it knows the weather."""
    from openai import AsyncOpenAI

    def get_weather(city: str) -> str:
        asked.append(city)
        return f"{city}: 20C"

    client = AsyncOpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=15)
    served = sdk.OpenAIResponsesModel(model=model, openai_client=client)
    sdk.set_tracing_disabled(True)

    def make(name: str = "Reporter", **given: Any) -> Any:
        given.setdefault("tools", [sdk.function_tool(get_weather)])
        return sdk.Agent(name=name, model=served, **given)

    yield make
    await client.close()


def look(city: str) -> dict[str, Any]:
    return {"call": "get_weather", "args": {"city": city}}


async def test_an_agent_answers(agent: Any, script: Script) -> None:
    result = await sdk.Runner.run(agent(instructions="Be kind."), script({"say": "hello"}))
    assert result.final_output == "hello"
    assert result.raw_responses[0].usage.total_tokens > 0


async def test_an_agent_runs_parallel_tools(agent: Any, script: Script, asked: list[str]) -> None:
    turns = [{"think": "two"}, look("Oslo"), look("Rome")], {"say": "both"}
    result = await sdk.Runner.run(agent(), script(*turns))
    assert result.final_output == "both"
    assert sorted(asked) == ["Oslo", "Rome"]


async def test_a_streamed_run_tells_its_items_in_order(agent: Any, script: Script) -> None:
    turns = [{"think": "where?"}, look("Bern")], {"say": "it is warm"}
    stream = sdk.Runner.run_streamed(agent(), script(*turns))
    names, written = [], ""
    async for event in stream.stream_events():
        if event.type == "run_item_stream_event":
            names.append(event.name)
        elif event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            written += event.data.delta
    assert names == [
        "reasoning_item_created",
        "tool_called",
        "tool_output",
        "message_output_created",
    ]
    assert written == stream.final_output == "it is warm"


async def test_a_handoff_lets_another_agent_answer(agent: Any, script: Script) -> None:
    triage = agent("Triage", tools=[], handoffs=[agent("Spanish")])
    turns = {"call": "transfer_to_spanish", "args": {}}, {"say": "hola"}
    result = await sdk.Runner.run(triage, script(*turns))
    assert (result.last_agent.name, result.final_output) == ("Spanish", "hola")


async def test_an_agent_gives_an_object(agent: Any, script: Script) -> None:
    said = script({"say": json.dumps({"city": "Bonn", "population": 3})})
    typed = agent(output_type=Place, tools=[])
    assert (await sdk.Runner.run(typed, said)).final_output == Place(city="Bonn", population=3)
    assert isinstance((await sdk.Runner.run(typed, "Any.")).final_output, Place)


async def test_a_session_keeps_the_history(agent: Any, script: Script) -> None:
    session = sdk.SQLiteSession("kept")
    await sdk.Runner.run(agent(), script(look("Kyiv"), {"say": "one"}), session=session)
    result = await sdk.Runner.run(agent(), script({"say": "two"}), session=session)
    assert result.final_output == "two"
    assert len(await session.get_items()) == 6


async def test_a_run_goes_on_from_an_earlier_response(agent: Any, script: Script) -> None:
    asked = script(look("Kyiv"), {"say": "one"})
    first = await sdk.Runner.run(agent(), asked, auto_previous_response_id=True)
    second = await sdk.Runner.run(
        agent(), script({"say": "two"}), previous_response_id=first.last_response_id
    )
    assert (first.final_output, second.final_output) == ("one", "two")


async def test_a_session_is_kept_in_a_conversation_of_the_server(
    server: Any, agent: Any, script: Script
) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        session = sdk.OpenAIConversationsSession(openai_client=client)
        await sdk.Runner.run(agent(), script(look("Lima"), {"say": "one"}), session=session)
        result = await sdk.Runner.run(agent(), script({"say": "two"}), session=session)
        assert result.final_output == "two"
        assert len(await session.get_items()) == 6
        popped = await session.pop_item()
        assert popped["content"][0]["text"] == "two"
        await session.clear_session()


async def test_a_run_with_tools_goes_on_in_a_conversation(
    server: Any, agent: Any, script: Script
) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        conversation = await client.conversations.create()
        for said in ("one", "two"):
            asked = script(look("Lima"), {"say": said})
            result = await sdk.Runner.run(agent(), asked, conversation_id=conversation.id)
            assert result.final_output == said
        items = [item async for item in client.conversations.items.list(conversation.id)]
    kinds = [item.type for item in items[::-1]]
    assert kinds == ["message", "function_call", "function_call_output", "message"] * 2


async def test_an_agent_is_a_tool_of_another(agent: Any, script: Script) -> None:
    inner = agent("Inner", tools=[]).as_tool(tool_name="ask_inner", tool_description="Asks.")
    turns = {"call": "ask_inner", "args": {"input": "Plainly."}}, {"say": "outer"}
    result = await sdk.Runner.run(agent("Outer", tools=[inner]), script(*turns))
    assert result.final_output == "outer"
    assert "Echo: Plainly." in [getattr(item, "output", None) for item in result.new_items]


async def test_a_session_is_compacted(agent: Any, script: Script, server: Any) -> None:
    from agents.memory import OpenAIResponsesCompactionSession
    from openai import AsyncOpenAI

    kept = sdk.SQLiteSession("compacted")
    async with AsyncOpenAI(base_url=server.api, api_key="none", max_retries=0) as client:
        session = OpenAIResponsesCompactionSession(
            session_id="compacted",
            underlying_session=kept,
            client=client,
            model="gpt-4.1-scripted",  # the session refuses names that are not OpenAI's
            should_trigger_compaction=lambda seen: len(seen["compaction_candidate_items"]) >= 2,
        )
        for said in ("one", "two", "three"):
            result = await sdk.Runner.run(agent(), script({"say": said}), session=session)
            assert result.final_output == said
    assert "compaction" in [item.get("type") for item in await kept.get_items()]


async def test_a_run_goes_over_a_websocket(
    model: str, script: Script, server: Any, asked: list[str]
) -> None:
    def get_weather(city: str) -> str:
        asked.append(city)
        return f"{city}: 20C"

    sdk.set_tracing_disabled(True)
    async with sdk.responses_websocket_session(base_url=server.api, api_key="none") as session:
        agent = sdk.Agent(name="Reporter", model=model, tools=[sdk.function_tool(get_weather)])
        stream = session.run_streamed(agent, script(look("Cork"), {"say": "over the socket"}))
        async for _ in stream.stream_events():
            pass
    assert (asked, stream.final_output) == (["Cork"], "over the socket")
