"""LangGraph: a graph with a checkpointer around langchain-openai's model."""

from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.prebuilt import create_react_agent
from play import API, KEY, MODEL, URL, Place, get_weather

model = ChatOpenAI(
    model=MODEL, base_url=URL, api_key=KEY, use_responses_api=API == "responses", max_retries=0
)


def agent(*tools: Any, **given: Any) -> Any:
    return create_react_agent(model, list(tools), checkpointer=MemorySaver(), **given)


def ask(graph: Any, prompt: str) -> Any:
    thread = {"configurable": {"thread_id": "one"}}
    return graph.invoke({"messages": [("user", prompt)]}, thread)


def plain(prompt: str) -> str:
    return ask(agent(), prompt)["messages"][-1].text


def stream(prompt: str) -> list[str]:
    thread = {"configurable": {"thread_id": "one"}}
    messages = agent().stream({"messages": [("user", prompt)]}, thread, stream_mode="messages")
    return [chunk.text for chunk, _ in messages if chunk.text]


def tools(prompt: str) -> str:
    return ask(agent(get_weather), prompt)["messages"][-1].text


def turns(*prompts: str) -> list[str]:
    graph = agent()
    return [ask(graph, prompt)["messages"][-1].text for prompt in prompts]


def structured(prompt: str) -> dict[str, Any]:
    return model.with_structured_output(Place, method="json_schema").invoke(prompt).model_dump()
