"""Compaction, three ways: on a trigger, by itself past a threshold, and by an endpoint of its own
(docs/reference/api.md#compaction)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.http.conftest import create, text_of

TRIGGER = {"type": "compaction_trigger"}
TALK = [
    {"role": "user", "content": "My cat is called Mina."},
    {"role": "assistant", "content": "Noted."},
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def prompt_of(http: Any, model: str, **body: Any) -> str:
    """Return what the model was given, as its format spells it."""
    response = create(http, model=model, enable_response_messages=True, **body)
    return str(response["input_messages"])


@pytest.mark.parametrize("store", [True, False])
def test_a_trigger_answers_with_one_compaction_item_and_nothing_else(
    http: Any, model: str, store: bool
) -> None:
    response = create(http, model=model, input=[*TALK, TRIGGER], store=store)
    assert response["status"] == "completed"
    assert [item["type"] for item in response["output"]] == ["compaction"]
    assert response["output"][0]["encrypted_content"]
    assert "Mina" not in response["output"][0]["encrypted_content"]
    assert response["usage"]["output_tokens"] > 0


def test_a_streamed_compaction_tells_that_it_goes_on(http: Any, model: str, frames: Any) -> None:
    body = {"model": model, "input": [*TALK, TRIGGER], "stream": True}
    events = frames(http.post("/responses", json=body).text)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
        "response.completed",
    ]
    done, final = events[-2]["item"], events[-1]["response"]["output"][0]
    assert done == final
    assert done["encrypted_content"]


def test_the_summary_stands_for_all_that_was_before_it(http: Any, model: str) -> None:
    compacted = create(http, model=model, input=[*TALK, TRIGGER])["output"]
    prompt = prompt_of(http, model, input=[*TALK, *compacted, user("Who is Mina?")])
    assert "Noted." not in prompt
    assert "summary of the conversation" in prompt
    assert "Who is Mina?" in prompt


def test_a_compaction_is_continued_by_id_as_by_its_items(http: Any, model: str) -> None:
    first = create(http, model=model, input=[*TALK, TRIGGER])
    by_items = prompt_of(http, model, input=[*first["output"], user("And now?")])
    by_id = prompt_of(http, model, previous_response_id=first["id"], input=[user("And now?")])
    assert by_id == by_items


@pytest.mark.parametrize(
    "form",
    [
        {"id": None},
        {"created_by": "someone", "parsed": None},
        {"id": None, "status": None, "summary": None},
    ],
)
def test_a_compaction_comes_back_in_every_form(http: Any, model: str, form: dict[str, Any]) -> None:
    first = create(http, model=model, input=[*TALK, TRIGGER])
    sent = {**first["output"][0], **form}
    by_items = prompt_of(http, model, input=[sent, user("And now?")])
    by_id = prompt_of(http, model, previous_response_id=first["id"], input=[user("And now?")])
    assert by_id == by_items


def test_unanswered_input_survives_compaction_unchanged(http: Any, model: str) -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "the sum is 3"}
    work = [
        {"role": "developer", "content": "Answer in Latin."},
        user("An older question."),
        {"role": "assistant", "content": "An older answer."},
        user("Add one and two."),
        call,
        output,
    ]
    compacted = create(http, model=model, input=[*work, TRIGGER])["output"]
    prompt = prompt_of(http, model, input=compacted)
    assert all(text in prompt for text in ("Latin", "Add one and two.", "the sum is 3"))
    assert "older" not in prompt


def test_past_the_threshold_the_answer_follows_a_compaction(http: Any, model: str) -> None:
    asked = {"type": "compaction", "compact_threshold": 1000}
    long = [user("word " * 1500), {"role": "assistant", "content": "Read."}, user("Go on.")]
    response = create(
        http, model=model, input=long, context_management=[asked], enable_response_messages=True
    )
    assert [item["type"] for item in response["output"] if item["type"] != "reasoning"] == [
        "compaction",
        "message",
    ]
    assert len(response["usage"]["input_tokens_details"]["input_tokens_per_turn"]) == 2
    after = response["usage"]["input_tokens_details"]["input_tokens_per_turn"][1]
    assert after < 500  # the long message is gone
    follow = create(
        http,
        model=model,
        previous_response_id=response["id"],
        input="Next.",
        context_management=[asked],
    )
    assert [item["type"] for item in follow["output"]] == ["message"]


def test_below_the_threshold_nothing_is_compacted(http: Any, model: str) -> None:
    for threshold in (100_000, None):
        asked = [{"type": "compaction", "compact_threshold": threshold}]
        response = create(http, model=model, input=[*TALK, user("Hi")], context_management=asked)
        assert [item["type"] for item in response["output"]] == ["message"]


def test_the_endpoint_returns_the_user_messages_and_the_compaction(http: Any, model: str) -> None:
    answer = http.post("/responses/compact", json={"model": model, "input": TALK})
    assert answer.status_code == 200, answer.text
    window = answer.json()
    assert window["object"] == "response.compaction"
    assert [item["type"] for item in window["output"]] == ["message", "compaction"]
    assert window["output"][0]["content"] == [{"type": "input_text", "text": TALK[0]["content"]}]
    assert window["usage"]["total_tokens"] > 0
    assert http.get(f"/responses/{window['id']}").status_code == 404
    assert "Hello" in text_of(create(http, model=model, input=[*window["output"], user("Hello")]))


def test_a_stored_response_can_be_compacted_by_id(http: Any, model: str) -> None:
    first = create(http, model=model, input="Remember the number 7.")
    answer = http.post(
        "/responses/compact", json={"model": model, "previous_response_id": first["id"]}
    )
    assert [item["type"] for item in answer.json()["output"]] == ["message", "compaction"]


def test_a_failing_engine_fails_the_compaction(http: Any, model: str, script: Any) -> None:
    broken = [user(script({"fail": "server_error"})), TRIGGER]
    assert http.post("/responses", json={"model": model, "input": broken}).status_code == 500
    body = {"model": model, "input": broken[:1]}
    assert http.post("/responses/compact", json=body).status_code == 500


def test_a_compaction_that_is_not_ours_is_refused(http: Any, model: str) -> None:
    foreign = {"type": "compaction", "encrypted_content": "gAAAAABforeign"}
    answer = http.post("/responses", json={"model": model, "input": [foreign, user("Hi")]})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_encrypted_content"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [TRIGGER, *TALK]}, "input[0]"),
        ({"input": [TRIGGER]}, "input"),
        ({"input": "Hi", "context_management": []}, "context_management"),
        (
            {"input": "Hi", "context_management": [{"type": "other"}]},
            "context_management[0].type",
        ),
        (
            {
                "input": "Hi",
                "context_management": [{"type": "compaction", "compact_threshold": 10}],
            },
            "context_management[0].compact_threshold",
        ),
    ],
)
def test_a_wrong_way_to_ask_is_refused_by_name(
    http: Any, model: str, fields: dict[str, Any], param: str
) -> None:
    answer = http.post("/responses", json={"model": model, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_window_is_compacted_whatever_is_asked_of_caches(http: Any, model: str) -> None:
    body = {"model": model, "input": TALK, "prompt_cache_options": {"prewarm": True}}
    window = http.post("/responses/compact", json=body).json()
    assert [item["type"] for item in window["output"]] == ["message", "compaction"]
