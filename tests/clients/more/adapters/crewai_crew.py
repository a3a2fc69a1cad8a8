"""CrewAI: its model, which speaks either API, and a crew of one agent with one task."""

from __future__ import annotations

from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from play import API, KEY, MODEL, URL, Place, get_weather

API_NAME = "responses" if API == "responses" else "completions"


def llm(**given: Any) -> LLM:
    return LLM(model=MODEL, provider="openai", base_url=URL, api_key=KEY, api=API_NAME, **given)


def crew(prompt: str, *tools: Any, **task: Any) -> Any:
    agent = Agent(role="Reporter", goal="Report.", backstory="Brief.", llm=llm(), tools=list(tools))
    asked = Task(description=prompt, expected_output="A text.", agent=agent, **task)
    return Crew(agents=[agent], tasks=[asked], tracing=False).kickoff()


def plain(prompt: str) -> str:
    return crew(prompt).raw


def stream(prompt: str) -> list[str]:
    from crewai.events import LLMStreamChunkEvent, crewai_event_bus

    pieces: list[str] = []
    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(LLMStreamChunkEvent)
        def take(_source: Any, event: Any) -> None:
            if event.chunk:
                pieces.append(event.chunk)

        llm(stream=True).call(prompt)
        crewai_event_bus.flush()
    return pieces


def tools(prompt: str) -> str:
    return crew(prompt, tool("get_weather")(get_weather)).raw


def turns(*prompts: str) -> list[str]:
    model = llm()
    messages: list[Any] = []
    for prompt in prompts:
        messages.append({"role": "user", "content": prompt})
        messages.append({"role": "assistant", "content": model.call(messages)})
    return [message["content"] for message in messages if message["role"] == "assistant"]


def structured(prompt: str) -> dict[str, Any]:
    return crew(prompt, output_pydantic=Place).pydantic.model_dump()
