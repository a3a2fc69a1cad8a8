"""A conversation whose prompts are compared, and what the model has read."""

from __future__ import annotations

from typing import Any

import httpx
from tests.http.conftest import create, script, text_of

Json = dict[str, Any]


def tool(name: str) -> Json:
    return {"type": "function", "name": name, "description": f"Returns {name}.", "parameters": {}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def first_request(model: str) -> Json:
    return {
        "model": model,
        "instructions": "Be kind, and say why.",
        "tools": [tool("weather"), tool("time")],
        "input": [
            user("We have three herons at the lake, and one of them is grey."),
            {"role": "assistant", "content": "How nice: herons eat fish."},
            user(script({"say": "So do I."})),
        ],
        "include": ["metrics"],
        "enable_response_messages": True,
    }


def next_request(before: Json, answer: Json) -> Json:
    """The same conversation, continued: nothing of what was there is changed."""
    said = [{"role": "assistant", "content": text_of(answer)}]
    return {
        **before,
        "input": [*before["input"], *said, user(script({"say": "Well."}))],
        "prompt_cache_options": {"comparison_response_id": answer["id"]},
    }


def tokens_of(answer: Json) -> list[int]:
    return [token for message in answer["input_messages"] for token in message["tokens"]]


def first_difference(before: Json, after: Json) -> int:
    pairs = enumerate(zip(tokens_of(before), tokens_of(after), strict=False))
    return next(index for index, (a, b) in pairs if a != b)


def compared(http: httpx.Client, with_id: str, **fields: Any) -> Json:
    options = {"prompt_cache_options": {"comparison_response_id": with_id}}
    response = create(http, **{"model": "scripted-chat", "input": "hi", **options, **fields})
    diagnostics: Json = response["prompt_cache_diagnostics"]
    return diagnostics
