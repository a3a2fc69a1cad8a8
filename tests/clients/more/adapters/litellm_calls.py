"""LiteLLM as a library: `responses`, and `completion` over either API."""

from __future__ import annotations

import json
from typing import Any

import litellm
from play import API, KEY, MODEL, URL, Place, get_weather

litellm.telemetry = False
bridged = "openai/responses/" if API == "bridged" else "openai/"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def create(given: Any, **more: Any) -> Any:
    return litellm.responses(
        model=f"openai/{MODEL}", api_base=URL, api_key=KEY, input=given, **more
    )


def complete(messages: list[Any], **given: Any) -> Any:
    return litellm.completion(
        model=f"{bridged}{MODEL}", api_base=URL, api_key=KEY, messages=messages, **given
    )


def asked(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}]


def plain(prompt: str) -> str:
    if API == "responses":
        return create(prompt).output_text
    return complete(asked(prompt)).choices[0].message.content


def stream(prompt: str) -> list[str]:
    if API == "responses":
        events = create(prompt, stream=True)
        return [each.delta for each in events if each.type == "response.output_text.delta"]
    chunks = complete(asked(prompt), stream=True)
    return [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]


def tools(prompt: str) -> str:
    if API == "responses":
        offered = [{"type": "function", **TOOL["function"]}]
        history: list[Any] = asked(prompt)
        while True:
            response = create(history, tools=offered)
            history += [item.model_dump() for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text
            for call in calls:
                told = get_weather(**json.loads(call.arguments))
                history.append(
                    {"type": "function_call_output", "call_id": call.call_id, "output": told}
                )
    messages: list[Any] = asked(prompt)
    while True:
        message = complete(messages, tools=[TOOL]).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            told = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": told})


def turns(*prompts: str) -> list[str]:
    said: list[str] = []
    messages: list[Any] = []
    previous = None
    for prompt in prompts:
        if API == "responses":
            response = create(prompt, previous_response_id=previous)
            previous = response.id
            said.append(response.output_text)
        else:
            messages += asked(prompt)
            messages.append(complete(messages).choices[0].message)
            said.append(messages[-1].content)
    return said


def structured(prompt: str) -> dict[str, Any]:
    if API == "responses":
        return json.loads(create(prompt, text_format=Place).output_text)
    return json.loads(complete(asked(prompt), response_format=Place).choices[0].message.content)
