"""Prompt cache diagnostics: which of two prompts' tokens differ first, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types.responses import Response
from tests.http.conftest import MODELS, create, script, stream, text_of, wait_until

Json = dict[str, Any]
Edit = Callable[[Json], None]


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


def asks(name: str, value: Any) -> Edit:
    return lambda body: body.update({name: value})


def says(index: int, text: str) -> Edit:
    return lambda body: body["input"][index].update(content=text)


def both(*edits: Edit) -> Edit:
    def edit(body: Json) -> None:
        for each in edits:
            each(body)

    return edit


def without(index: int) -> Edit:
    return lambda body: body["input"].pop(index)


def with_first(item: Json) -> Edit:
    return lambda body: body["input"].insert(0, item)


SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object", "properties": {}}}
TOOLS = [tool("weather"), tool("time")]
MISSES: dict[str, tuple[Edit, str, str]] = {
    "an earlier item": (says(0, "We have three herons at sea."), "input_changed", "input[0]"),
    "a later item": (says(1, "How nice: herons eat frogs."), "input_changed", "input[1]"),
    "an item less": (without(0), "input_changed", "input[0]"),
    "an item more": (with_first(user("Hello.")), "input_changed", "input[0]"),
    "the role of an item": (
        lambda body: body["input"][1].update(role="user"),
        "input_changed",
        "input[1]",
    ),
    "the instructions": (asks("instructions", "Be curt."), "input_changed", "instructions"),
    "no instructions": (asks("instructions", None), "input_changed", "instructions"),
    "tools in another order": (asks("tools", TOOLS[::-1]), "tools_changed", "tools[0]"),
    "a tool more": (asks("tools", [*TOOLS, tool("tide")]), "tools_changed", "tools[2]"),
    "a tool less": (asks("tools", TOOLS[:1]), "tools_changed", "tools[1]"),
    "no tools": (asks("tools", []), "tools_changed", "tools[0]"),
    "a tool's description": (
        asks("tools", [TOOLS[0], {**TOOLS[1], "description": "Tells the time."}]),
        "tools_changed",
        "tools[1]",
    ),
    "no tool may be called": (asks("tool_choice", "none"), "tools_changed", "tool_choice"),
    "the verbosity": (asks("text", {"verbosity": "low"}), "verbosity_changed", "text.verbosity"),
    "an item and a format that no prompt shows": (
        both(asks("text", {"format": {"type": "text"}}), says(0, "No herons.")),
        "input_changed",
        "input[0]",
    ),
    "a tool and an item": (
        both(asks("tools", TOOLS[:1]), says(1, "How nice: herons eat frogs.")),
        "tools_changed",
        "tools[1]",
    ),
    "the verbosity and an item": (
        both(asks("text", {"verbosity": "high"}), says(0, "No herons.")),
        "verbosity_changed",
        "text.verbosity",
    ),
}


@pytest.mark.parametrize("change", MISSES)
def test_a_change_is_named_with_its_token(http: httpx.Client, model: str, change: str) -> None:
    edit, reason, part = MISSES[change]
    before = first_request(model)
    first = create(http, **before)
    body = next_request(before, first)
    edit(body)
    second = create(http, **body)
    index = first_difference(first, second)
    tokens = second["usage"]["input_tokens"]
    assert second["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": tokens - index,
        "comparison_reusable_tokens": index,
    }
    assert second["metrics"]["prompt_comparison"] == {
        "response_id": first["id"],
        "result": "cache_miss",
        "reason": reason,
        "part": part,
        "compared_tokens": first["usage"]["input_tokens"],
        "prompt_tokens": tokens,
        "shared_tokens": index,
        "differs_at": index,
    }


def test_a_conversation_that_goes_on_is_a_hit(http: httpx.Client, model: str) -> None:
    before = first_request(model)
    first = create(http, **before)
    second = create(http, **next_request(before, first))
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    comparison = second["metrics"]["prompt_comparison"]
    assert comparison["shared_tokens"] == comparison["compared_tokens"]
    assert "differs_at" not in comparison
