"""Summaries of reasoning: written when they are asked for, into the item of the thought."""

from __future__ import annotations

from typing import Any

import pytest
from tests.http.conftest import create

THOUGHT = {"think": "The user greets me. I should greet back."}


@pytest.mark.parametrize("asked", ["auto", "concise", "detailed"])
def test_reasoning_gets_a_summary_if_the_request_wants_one(
    http: Any, model: str, script: Any, asked: str
) -> None:
    response = create(
        http,
        model=model,
        input=script([THOUGHT, {"say": "Hello!"}]),
        reasoning={"summary": asked},
    )
    reasoning, message = response["output"]
    assert reasoning["content"][0]["text"] == THOUGHT["think"]
    assert len(reasoning["summary"]) == 1
    assert reasoning["summary"][0]["text"] == f"Summary: {THOUGHT['think']}"
    assert message["content"][0]["text"] == "Hello!"
    assert response["reasoning"]["summary"] == asked


def test_no_summary_is_written_unasked(http: Any, model: str, script: Any) -> None:
    response = create(http, model=model, input=script([THOUGHT, {"say": "Hello!"}]))
    assert response["output"][0]["summary"] == []


def test_a_summary_is_streamed_inside_its_item(
    http: Any, model: str, script: Any, frames: Any
) -> None:
    body = {
        "model": model,
        "input": script([THOUGHT, {"say": "Hello!"}]),
        "reasoning": {"summary": "auto"},
        "stream": True,
    }
    events = frames(http.post("/responses", json=body).text)
    of_item = [e for e in events if e.get("output_index") == 0]
    names = list(dict.fromkeys(e["type"].removeprefix("response.") for e in of_item))
    assert names == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    written = "".join(
        e["delta"] for e in of_item if e["type"] == "response.reasoning_summary_text.delta"
    )
    assert written == events[-1]["response"]["output"][0]["summary"][0]["text"]


def test_the_tokens_of_a_summary_are_counted(http: Any, model: str, script: Any) -> None:
    asked = script([THOUGHT, {"say": "Hello!"}])
    plain = create(http, model=model, input=asked)["usage"]
    summed = create(
        http,
        model=model,
        input=asked,
        reasoning={"summary": "auto"},
        enable_response_messages=True,
    )["usage"]
    assert summed["input_tokens_details"]["input_tokens_per_turn"][0] == plain["input_tokens"]
    assert summed["output_tokens"] > plain["output_tokens"]


def test_a_hidden_thought_is_not_summarised(http: Any, model: str, script: Any) -> None:
    response = create(
        http,
        model=model,
        input=script([THOUGHT, {"say": "Hello!"}]),
        reasoning={"summary": "auto"},
        include_reasoning=False,
        enable_response_messages=True,
    )
    assert [item["type"] for item in response["output"]] == ["message"]
    assert len(response["usage"]["input_tokens_details"]["input_tokens_per_turn"]) == 1


def test_a_summary_is_not_shown_to_the_model_beside_its_thought(
    http: Any, model: str, script: Any
) -> None:
    call = {"call": "add", "args": {}}
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
    first = create(
        http,
        model=model,
        input=script([THOUGHT, call], {"say": "3"}),
        tools=[tool],
        reasoning={"summary": "auto"},
    )
    answer = {
        "type": "function_call_output",
        "call_id": first["output"][-1]["call_id"],
        "output": "3",
    }
    second = create(
        http,
        model=model,
        previous_response_id=first["id"],
        input=[answer],
        tools=[tool],
        enable_response_messages=True,
    )
    shown = str(second["input_messages"])
    assert THOUGHT["think"] in shown
    assert "Summarise these thoughts" not in shown
