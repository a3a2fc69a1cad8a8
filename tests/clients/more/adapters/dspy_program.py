"""DSPy, which calls models through LiteLLM."""

from __future__ import annotations

import dspy
from play import API, KEY, MODEL, URL

model = dspy.LM(
    f"openai/{MODEL}",
    api_base=URL,
    api_key=KEY,
    model_type="responses" if API == "responses" else "chat",
    cache=False,
    num_retries=0,
)


def plain(prompt: str) -> str:
    (said,) = model(prompt)
    return said if isinstance(said, str) else said["text"]


def turns(*prompts: str) -> list[str]:
    messages: list[dict[str, str]] = []
    for prompt in prompts:
        messages.append({"role": "user", "content": prompt})
        (said,) = model(messages=messages)
        text = said if isinstance(said, str) else said["text"]
        messages.append({"role": "assistant", "content": text})
    return [message["content"] for message in messages if message["role"] == "assistant"]
