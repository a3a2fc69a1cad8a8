"""Programs that call tools, with unmodified clients that have tools for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

from .conftest import INSTALLED, Run

pytestmark = pytest.mark.clients
Script = Callable[..., str]


class Weather(BaseModel):
    degrees: int


CODE = """
const cities = ["Oslo", "Rome"];
const all = await Promise.all(cities.map((city) => tools.get_weather({ city })));
const next = await tools.get_weather({ city: "Bern" });
text([...all, next].map((each) => each.degrees).join(" "));
"""
PROGRAM = {"call": "program", "args": {"code": CODE}}


@pytest.fixture
def programs(serve: Any) -> Iterator[Any]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    with serve(programs=True, store="sqlite") as server:
        yield server


@pytest.fixture
def asked() -> list[str]:
    """The cities whose weather the programs looked up."""
    return []


@pytest.fixture
async def agent(programs: Any, model: str, asked: list[str]) -> Any:
    sdk: Any = pytest.importorskip("agents", reason="make test-clients installs openai-agents")
    from openai import AsyncOpenAI

    def get_weather(city: str) -> Weather:
        asked.append(city)
        return Weather(degrees=len(city))

    async with AsyncOpenAI(
        base_url=programs.api, api_key="none", max_retries=0, timeout=15
    ) as client:
        served = sdk.OpenAIResponsesModel(model=model, openai_client=client)
        sdk.set_tracing_disabled(True)
        tool = sdk.function_tool(get_weather, allowed_callers=["programmatic"])
        yield sdk.Agent(
            name="Reporter", model=served, tools=[sdk.ProgrammaticToolCallingTool(), tool]
        )


def sent_back(sdk: Any) -> dict[str, Any]:
    return {}


def not_stored(sdk: Any) -> dict[str, Any]:
    return {"run_config": sdk.RunConfig(model_settings=sdk.ModelSettings(store=False))}


def chained(_: Any) -> dict[str, Any]:
    return {"auto_previous_response_id": True}


def in_a_session(sdk: Any) -> dict[str, Any]:
    return {"session": sdk.SQLiteSession("programs")}


@pytest.mark.parametrize("how", [sent_back, not_stored, chained, in_a_session])
@pytest.mark.parametrize("streams", [False, True])
async def test_the_agents_sdk_answers_the_calls_of_a_program(
    agent: Any, script: Script, asked: list[str], *, streams: bool, how: Callable[[Any], Any]
) -> None:
    sdk: Any = pytest.importorskip("agents")
    turns = script(PROGRAM, {"say": "Here it is."})
    if streams:
        result = sdk.Runner.run_streamed(agent, turns, **how(sdk))
        async for _ in result.stream_events():
            pass
    else:
        result = await sdk.Runner.run(agent, turns, **how(sdk))
    assert result.final_output == "Here it is."
    assert sorted(asked) == ["Bern", "Oslo", "Rome"]
    outputs = [
        item
        for response in result.raw_responses
        for item in response.output
        if item.type == "program_output"
    ]
    assert [(each.status, each.result) for each in outputs] == [("completed", "4 4 4")]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("client", ["ai-sdk", "agents"])
def test_a_client_for_node_answers_the_calls_of_a_program(
    run_node: Run, node: str, programs: Any, model: str, client: str
) -> None:
    if not (INSTALLED / "ai").exists():
        pytest.skip("the clients for Node are not installed: make test-clients does it")
    program = Path("node") / f"programs-{client}.mjs"
    ran = run_node(
        node, program, ANTIPHON_URL=programs.api, ANTIPHON_MODEL=model, ANTIPHON_CODE=CODE
    )
    if "too old" in ran:
        pytest.skip("this version has no programs: newer ones need a newer Node")
    assert "passed" in ran


async def test_the_agents_sdk_goes_on_with_a_conversation_that_has_programs(
    agent: Any, script: Script, asked: list[str]
) -> None:
    sdk: Any = pytest.importorskip("agents")
    session = sdk.SQLiteSession("again")
    for number, answer in enumerate(("Here it is.", "Here it is again."), start=1):
        turns = script(PROGRAM, {"say": answer})
        result = sdk.Runner.run_streamed(agent, turns, session=session)
        async for _ in result.stream_events():
            pass
        assert result.final_output == answer
        assert sorted(asked) == sorted(["Bern", "Oslo", "Rome"] * number)


def test_a_stream_of_a_program_that_was_cut_is_resumed(
    programs: Any, model: str, script: Script
) -> None:
    """By OpenAI's own client, from any event on, before the client's answers and after them."""
    tools: Any = [
        {"type": "programmatic_tool_calling"},
        {
            "type": "function",
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            "allowed_callers": ["programmatic"],
        },
    ]
    with OpenAI(base_url=programs.api, api_key="none", max_retries=0) as client:
        body: Any = {"model": model, "tools": tools, "stream": True, "background": True}
        given: Any = script(PROGRAM, {"say": "Here it is."})
        kinds: list[str] = []
        before: dict[str, Any] = {}
        while True:
            with client.responses.create(input=given, **before, **body) as stream:
                first = next(iter(stream))
            assert first.type == "response.created"
            resumed = [*client.responses.retrieve(first.response.id, stream=True, starting_after=0)]
            events = [*client.responses.retrieve(first.response.id, stream=True)]
            assert events[1:] == resumed
            last = events[-1]
            assert last.type == "response.completed"
            kinds += [item.type for item in last.response.output]
            calls = [item for item in last.response.output if item.type == "function_call"]
            if not calls:
                break
            before = {"previous_response_id": last.response.id}
            given = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": json.dumps({"degrees": len(json.loads(call.arguments)["city"])}),
                }
                for call in calls
            ]
        assert kinds == ["program", *["function_call"] * 3, "program_output", "message"]
        [output] = [item for item in last.response.output if item.type == "program_output"]
        assert output.result == "4 4 4"
