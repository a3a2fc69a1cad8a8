"""Strands Agents: its models for both APIs, and its agent."""

from __future__ import annotations

import asyncio
from typing import Any

from play import API, KEY, MODEL, URL, Place, get_weather
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel

Model = OpenAIResponsesModel if API == "responses" else OpenAIModel


def agent(**given: Any) -> Agent:
    model = Model(client_args={"base_url": URL, "api_key": KEY}, model_id=MODEL)
    return Agent(model=model, callback_handler=None, **given)


def plain(prompt: str) -> str:
    return str(agent()(prompt)).strip()


def stream(prompt: str) -> list[str]:
    async def run() -> list[str]:
        return [event["data"] async for event in agent().stream_async(prompt) if "data" in event]

    return asyncio.run(run())


def tools(prompt: str) -> str:
    return str(agent(tools=[tool(get_weather)])(prompt)).strip()


def turns(*prompts: str) -> list[str]:
    kept = agent()
    return [str(kept(prompt)).strip() for prompt in prompts]


def structured(prompt: str) -> dict[str, Any]:
    return agent()(prompt, structured_output_model=Place).structured_output.model_dump()
