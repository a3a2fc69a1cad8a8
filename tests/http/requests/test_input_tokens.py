"""Counting tokens: exactly what a run would be charged for, and nothing is created."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

WEATHER = {"type": "function", "name": "get_weather", "description": "Current weather."}
IMAGE = {"type": "input_image", "image_url": "data:image/gif;base64,R0lGODlhAQABAAAAADs="}


def count(http: httpx.Client, **body: Any) -> int:
    answer = http.post("/responses/input_tokens", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["object"] == "response.input_tokens"
    tokens: int = found["input_tokens"]
    return tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": "hi", "instructions": "Be brief."},
        {"input": "hi", "tools": [WEATHER]},
        {"input": "hi", "tools": [WEATHER], "tool_choice": "none"},
        {"input": "hi", "reasoning": {"effort": "high"}},
        {
            "input": "hi",
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        },
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, IMAGE]}]},
    ],
)
def test_the_count_is_what_a_run_is_charged_for(
    http: httpx.Client, model: str, fields: dict[str, Any]
) -> None:
    created = http.post("/responses", json={"model": model, **fields}).json()
    assert count(http, model=model, **fields) == created["usage"]["input_tokens"]


def test_history_counts(http: httpx.Client, model: str) -> None:
    first = http.post("/responses", json={"model": model, "input": "one " * 50}).json()
    body = {"model": model, "input": "two", "previous_response_id": first["id"]}
    created = http.post("/responses", json=body).json()
    assert count(http, **body) == created["usage"]["input_tokens"] > 50


def test_a_count_needs_neither_model_nor_input(http: httpx.Client) -> None:
    assert count(http) == count(http, model="scripted-chat")


def test_too_many_tokens_are_counted_too(serve: Any) -> None:
    narrow = serve(**{"scripted.context_length": 100})
    with narrow as server, httpx.Client(base_url=server.api) as http:
        assert count(http, input="word " * 500) > 500


@pytest.mark.parametrize(
    ("field", "value"),
    [("input", 5), ("model", "nope"), ("previous_response_id", "resp_none"), ("tools", "x")],
)
def test_a_wrong_field_is_named_as_in_a_run(http: httpx.Client, field: str, value: Any) -> None:
    refused = http.post("/responses/input_tokens", json={"input": "hi", field: value})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == field


UNRUN = {"type": "image_generation"}


def test_ignored_fields_are_named_as_on_creation(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": "x", "tools": [UNRUN], "moderation": {"model": "m"}}
    counted = http.post("/responses/input_tokens", json=body)
    created = http.post("/responses", json=body)
    assert counted.headers["x-antiphon-ignored"] == "tools[0], moderation"
    assert counted.headers["x-antiphon-ignored"] == created.headers["x-antiphon-ignored"]
