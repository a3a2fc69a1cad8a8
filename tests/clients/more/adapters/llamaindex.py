"""LlamaIndex: its models for both APIs, and its function agent."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.workflow import Context
from llama_index.llms.openai import OpenAIResponses
from play import KEY, MODEL, URL, Place, get_weather


def llm() -> OpenAIResponses:
    return OpenAIResponses(
        model=MODEL, api_base=URL, api_key=KEY, context_window=131072, max_retries=0
    )


def plain(prompt: str) -> str:
    return llm().complete(prompt).text


def stream(prompt: str) -> list[str]:
    chunks = llm().stream_chat([ChatMessage(role="user", content=prompt)])
    return [chunk.delta for chunk in chunks if chunk.delta]


def tools(prompt: str) -> str:
    async def run() -> str:
        return str(await FunctionAgent(tools=[get_weather], llm=llm()).run(prompt))

    return asyncio.run(run())


def turns(*prompts: str) -> list[str]:
    async def run() -> list[str]:
        agent = FunctionAgent(tools=[get_weather], llm=llm())
        context = Context(agent)
        return [str(await agent.run(prompt, ctx=context)) for prompt in prompts]

    return asyncio.run(run())


def structured(prompt: str) -> dict[str, Any]:
    return llm().as_structured_llm(Place).complete(prompt).raw.model_dump()
