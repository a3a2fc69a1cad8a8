"""Haystack: its generators for both APIs, and its agent."""

from __future__ import annotations

import json
from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from play import API, KEY, MODEL, URL, Place, get_weather

Generator = OpenAIResponsesChatGenerator if API == "responses" else OpenAIChatGenerator


def generator(**given: Any) -> Any:
    return Generator(
        model=MODEL, api_base_url=URL, api_key=Secret.from_token(KEY), max_retries=0, **given
    )


def asked(prompt: str) -> list[ChatMessage]:
    return [ChatMessage.from_user(prompt)]


def plain(prompt: str) -> str:
    return generator().run(asked(prompt))["replies"][0].text


def stream(prompt: str) -> list[str]:
    pieces: list[str] = []

    def take(chunk: Any) -> None:
        if chunk.content:
            pieces.append(chunk.content)

    generator(streaming_callback=take).run(asked(prompt))
    return pieces


def tools(prompt: str) -> str:
    agent = Agent(chat_generator=generator(), tools=[create_tool_from_function(get_weather)])
    return agent.run(messages=asked(prompt))["messages"][-1].text


def turns(*prompts: str) -> list[str]:
    history: list[ChatMessage] = []
    model = generator()
    for prompt in prompts:
        history += asked(prompt)
        history += model.run(history)["replies"]
    return [message.text for message in history if message.role == "assistant"]


def structured(prompt: str) -> dict[str, Any]:
    key = "text_format" if API == "responses" else "response_format"
    return json.loads(
        generator(generation_kwargs={key: Place}).run(asked(prompt))["replies"][0].text
    )
