"""Agno: its models for both APIs, and an agent that keeps its history in a database."""

from __future__ import annotations

from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat, OpenAIResponses
from play import API, KEY, MODEL, URL, Place, get_weather

Model = OpenAIResponses if API == "responses" else OpenAIChat


def agent(**given: Any) -> Agent:
    return Agent(model=Model(id=MODEL, base_url=URL, api_key=KEY), telemetry=False, **given)


def plain(prompt: str) -> str:
    return agent().run(prompt).content


def stream(prompt: str) -> list[str]:
    events = agent().run(prompt, stream=True)
    return [event.content for event in events if event.event == "RunContent" and event.content]


def tools(prompt: str) -> str:
    return agent(tools=[get_weather]).run(prompt).content


def turns(*prompts: str) -> list[str]:
    kept = agent(db=InMemoryDb(), add_history_to_context=True, session_id="one")
    return [kept.run(prompt).content for prompt in prompts]


def structured(prompt: str) -> dict[str, Any]:
    return agent(output_schema=Place).run(prompt).content.model_dump()
