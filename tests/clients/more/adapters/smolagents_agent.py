"""smolagents: its model for OpenAI, and an agent that calls tools until it calls `final_answer`."""

from __future__ import annotations

from typing import Any

from play import KEY, MODEL, URL, get_weather
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=MODEL, api_base=URL, api_key=KEY)


def asked(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": prompt}]}]


def plain(prompt: str) -> str:
    return model.generate(asked(prompt)).content


def stream(prompt: str) -> list[str]:
    return [delta.content for delta in model.generate_stream(asked(prompt)) if delta.content]


def tools(prompt: str) -> str:
    agent = ToolCallingAgent(tools=[tool(get_weather)], model=model, max_steps=4, verbosity_level=0)
    return agent.run(prompt)


def turns(*prompts: str) -> list[str]:
    agent = ToolCallingAgent(tools=[], model=model, max_steps=2, verbosity_level=0)
    return [agent.run(prompt, reset=False) for prompt in prompts]
