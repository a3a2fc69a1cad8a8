"""The Messages API over the running server: what is answered, whole and in a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.http.conftest import script, text_of
from tests.http.requests.test_media import data_url, png

Json = dict[str, Any]

PATH = "/messages"
ADD = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {}}}}
ORDER: Mapping[str, tuple[str, ...]] = {
    "": ("message_start",),
    "message_start": ("content_block_start", "message_delta", "error"),
    "content_block_start": ("content_block_delta", "content_block_stop", "error"),
    "content_block_delta": ("content_block_delta", "content_block_stop", "error"),
    "content_block_stop": ("content_block_start", "message_delta", "error"),
    "message_delta": ("message_stop",),
    "message_stop": (),
    "error": (),
}
"""The events that may follow each event; a ping may be anywhere."""


def user(*turns: Any) -> list[Json]:
    return [{"role": "user", "content": script(*turns)}]


def create(http: httpx.Client, **body: Any) -> Json:
    answer = http.post(PATH, json={"max_tokens": 4096, **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def stream(http: httpx.Client, **body: Any) -> list[Json]:
    """Return the events of a stream, which are in order."""
    answer = http.post(PATH, json={"max_tokens": 4096, **body, "stream": True})
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def events_of(text: str) -> list[Json]:
    """Return the events of a stream without its pings."""
    events: list[Json] = []
    last = ""
    for frame in filter(None, text.replace(": keepalive\n", "").split("\n\n")):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            assert event["type"] in ORDER[last], (last, event)
            last = event["type"]
            events.append(event)
    return events


def assembled(events: list[Json]) -> Json:
    """Return the message that events make up, as a client puts it together."""
    message: Json = {}
    pieces: list[str] = []
    for event in events:
        match event["type"]:
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(dict(event["content_block"]))
                pieces = []
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                grow(message["content"][-1], event["delta"], pieces)
            case "content_block_stop":
                if pieces:
                    message["content"][-1]["input"] = object_of("".join(pieces))
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
                if "context_management" in event:
                    message["context_management"] = event["context_management"]
    return message


def grow(block: Json, delta: Json, pieces: list[str]) -> None:
    match delta["type"]:
        case "input_json_delta":
            pieces.append(delta["partial_json"])
        case "citations_delta":
            block["citations"] = [*(block["citations"] or ()), delta["citation"]]
        case _:
            name = delta["type"].removesuffix("_delta")
            block[name] += delta[name]


def object_of(text: str) -> Json:
    """Return the input of a call; what was cut off in the middle is none."""
    try:
        found: Json = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def comparable(message: Json) -> Json:
    """Return what is the same in a stream and in an object of two runs of one request."""
    usage = {**message["usage"]}
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")  # the first run fills the cache
    blocks = [
        {name: value for name, value in block.items() if name not in ("id", "signature")}
        for block in message["content"]
    ]
    same = ("type", "role", "model", "stop_reason", "stop_sequence")
    return {**{name: message[name] for name in same}, "content": blocks, "usage": usage}


# --- answers --------------------------------------------------------------------------------------


def test_an_answer_has_its_text_its_thoughts_and_its_usage(http: httpx.Client, model: str) -> None:
    found = create(http, model=model, messages=user([{"think": "hm"}, {"say": "one two"}]))
    thought, text = found["content"]
    assert found["id"].startswith("msg_")
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", model)
    assert (found["stop_reason"], found["stop_sequence"]) == ("end_turn", None)
    assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
    assert thought["signature"]
    assert text == {"type": "text", "text": "one two", "citations": None}
    usage = found["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 0
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]


def test_the_tokens_of_a_prompt_are_told_apart_by_where_they_came_from(
    http: httpx.Client,
) -> None:
    body = {"model": "scripted-chat", "messages": user({"say": "once more"}), "system": "x " * 500}
    create(http, **body)
    usage = create(http, **body)["usage"]
    assert usage["cache_read_input_tokens"] > 0
    counted = http.post(f"{PATH}/count_tokens", json=body).json()["input_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted


def test_calls_are_answered_until_the_model_is_done(http: httpx.Client, model: str) -> None:
    messages = user(
        [{"think": "t"}, {"call": "add", "args": {"a": 1}}, {"call": "add", "args": {"a": 2}}],
        {"say": "3"},
    )
    first = create(http, model=model, messages=messages, tools=[ADD])
    calls = [block for block in first["content"] if block["type"] == "tool_use"]
    assert first["stop_reason"] == "tool_use"
    assert [call["input"] for call in calls] == [{"a": 1}, {"a": 2}]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": "ok"} for call in calls
    ]
    messages += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": results},
    ]
    second = create(http, model=model, messages=messages, tools=[ADD])
    assert [block["text"] for block in second["content"]] == ["3"]
    assert second["stop_reason"] == "end_turn"


def test_thoughts_come_back_without_their_text(http: httpx.Client, model: str) -> None:
    turns = [{"think": "a long thought of many words"}, {"call": "add", "args": {}}], {"say": "x"}
    asked = user(*turns)
    sealed = {"type": "adaptive", "display": "omitted"}
    first = create(http, model=model, messages=asked, tools=[ADD], thinking=sealed)
    thought, call = first["content"]
    assert (thought["thinking"], call["type"]) == ("", "tool_use")
    assert "thought" not in thought["signature"]

    def tokens_with(*blocks: Json) -> int:
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "ok"}
        messages = [
            *asked,
            {"role": "assistant", "content": [*blocks, call]},
            {"role": "user", "content": [result]},
        ]
        body = {"model": model, "messages": messages, "tools": [ADD]}
        answer = http.post(f"{PATH}/count_tokens", json=body)
        assert answer.status_code == 200, answer.text
        counted: int = answer.json()["input_tokens"]
        return counted

    shown = {"type": "thinking", "thinking": "a long thought of many words", "signature": ""}
    redacted = {"type": "redacted_thinking", "data": thought["signature"]}
    assert tokens_with(thought) == tokens_with(shown) == tokens_with(redacted) > tokens_with()
    foreign = {"type": "redacted_thinking", "data": "of another server"}
    assert tokens_with(foreign) == tokens_with()


def test_thoughts_that_nobody_asked_for_can_be_left_out(http: httpx.Client, model: str) -> None:
    messages = user([{"think": "hm"}, {"say": "one"}])
    body = {"model": model, "messages": messages, "thinking": {"type": "disabled"}}
    assert [block["type"] for block in create(http, **body)["content"]] == ["text"]
    assert [block["type"] for block in assembled(stream(http, **body))["content"]] == ["text"]


def test_a_refusal_is_a_text_and_a_reason(http: httpx.Client) -> None:
    found = create(http, model="scripted-chat", messages=user({"refuse": "No."}))
    assert [block["text"] for block in found["content"]] == ["No."]
    assert found["stop_reason"] == "refusal"


def test_an_answer_may_be_one_token_long(http: httpx.Client, model: str) -> None:
    found = create(http, model=model, messages=user({"say": "one two three four"}), max_tokens=1)
    assert (found["stop_reason"], found["usage"]["output_tokens"]) == ("max_tokens", 1)


def test_the_stop_sequence_that_came_is_named(http: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": user({"say": "one two three four"})}
    found = create(http, **body, stop_sequences=["four", "three"])
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "three")
    assert found["content"][-1]["text"] == "one two "
    streamed = assembled(stream(http, **body, stop_sequences=["four", "three"]))
    for name in ("content", "stop_reason", "stop_sequence"):
        assert comparable(streamed)[name] == comparable(found)[name]
    none = create(http, **body, stop_sequences=["five"])
    assert (none["stop_reason"], none["stop_sequence"]) == ("end_turn", None)


def test_a_response_names_its_stop_string_too(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": script({"say": "one two three"}), "stop": "two"}
    assert http.post("/responses", json=body).json()["stop_string"] == "two"
    assert "stop_string" not in http.post("/responses", json={**body, "stop": "x"}).json()


def test_a_schema_is_what_is_written(http: httpx.Client, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    given = {"format": {"type": "json_schema", "schema": schema}}
    messages = [{"role": "user", "content": "Write."}]
    found = create(http, model=model, messages=messages, output_config=given)
    assert isinstance(json.loads(found["content"][-1]["text"])["a"], int)


def test_documents_and_images_are_read(http: httpx.Client) -> None:
    kind, _, data = data_url(png()).removeprefix("data:").partition(";base64,")
    source = {"type": "base64", "media_type": kind, "data": data}
    document = {"type": "text", "media_type": "text/plain", "data": "Psalms are sung."}
    blocks = [
        {"type": "text", "text": "See:"},
        {"type": "image", "source": source},
        {"type": "document", "source": document, "title": "a.txt"},
    ]
    found = create(http, model="scripted-chat", messages=[{"role": "user", "content": blocks}])
    parts = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": data_url(png())},
        {"type": "input_text", "text": "a.txt\n\nPsalms are sung."},
    ]
    same = [{"role": "user", "content": parts}]
    answer = http.post("/responses", json={"model": "scripted-chat", "input": same}).json()
    usage = found["usage"]
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert tokens == answer["usage"]["input_tokens"]


def test_nothing_is_stored_unless_the_client_asks(http: httpx.Client, model: str) -> None:
    messages = user({"say": "kept"})
    kept = create(http, model=model, messages=messages, store=True, metadata={"user_id": "ann"})
    found = http.get(f"/responses/{kept['id'].replace('msg_', 'resp_')}")
    assert (text_of(found.json()), found.json()["user"]) == ("kept", "ann")
    gone = create(http, model=model, messages=messages)
    assert http.get(f"/responses/{gone['id'].replace('msg_', 'resp_')}").status_code == 404


def test_a_count_is_that_of_the_prompt(http: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": user({"say": "hi"}), "system": "Be brief.", "tools": [ADD]}
    answer = http.post(f"{PATH}/count_tokens", json=body)
    assert list(answer.json()) == ["input_tokens"]
    usage = create(http, **body)["usage"]
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert answer.json()["input_tokens"] == tokens


def used(uses: int) -> list[Json]:
    """Return a conversation with so many tool uses, the results of which are long."""
    told = user({"say": "seen"})
    for number in range(uses):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "add", "input": {"a": number}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "seen " * 40}
        told += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return told


@pytest.mark.parametrize("streams", [False, True])
def test_old_tool_uses_are_cleared_and_told(http: httpx.Client, model: str, streams: bool) -> None:
    edits = [{"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 4}}]
    body = {"model": model, "messages": used(6), "tools": [ADD]}
    edited = {**body, "context_management": {"edits": edits}}
    message = assembled(stream(http, **edited)) if streams else create(http, **edited)
    [applied] = message["context_management"]["applied_edits"]
    assert (applied["type"], applied["cleared_tool_uses"]) == (edits[0]["type"], 3)
    whole = http.post(f"{PATH}/count_tokens", json=body).json()["input_tokens"]
    usage = message["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert read == whole - applied["cleared_input_tokens"]
    counted = http.post(f"{PATH}/count_tokens", json=edited).json()
    assert counted == {
        "input_tokens": read,
        "context_management": {"original_input_tokens": whole},
    }


def test_nothing_is_cleared_below_the_trigger_or_for_too_little(http: httpx.Client) -> None:
    edit = {"type": "clear_tool_uses_20250919"}
    uses = {"type": "tool_uses", "value": 0}
    least = {"type": "input_tokens", "value": 9_000}
    for fields in (
        {},
        {"trigger": {**uses, "value": 6}},
        {"trigger": uses, "clear_at_least": least},
    ):
        edits = {"edits": [{**edit, **fields}]}
        told = create(
            http, model="scripted-chat", messages=used(6), tools=[ADD], context_management=edits
        )
        assert "context_management" not in told


# --- streams --------------------------------------------------------------------------------------

TURNS: Mapping[str, Any] = {
    "a text": {"say": "one two three"},
    "a thought": [{"think": "so it is"}, {"say": "it is"}],
    "only a thought": {"think": "hm"},
    "calls": [{"call": "add", "args": {"a": 1}}, {"call": "add", "args": {}}],
    "a text and a call": [{"think": "t"}, {"say": "I add."}, {"call": "add", "args": {"a": "é"}}],
    "a refusal": [{"say": "I "}, {"refuse": "will not"}],
    "a cut": [{"say": "one two"}, {"say": " three", "finish": "length"}],
}


@pytest.mark.parametrize("name", TURNS)
def test_a_stream_is_the_object_bit_by_bit(http: httpx.Client, model: str, name: str) -> None:
    if name == "a refusal" and model == "scripted-harmony":
        pytest.skip("Harmony has no refusals")
    body = {"model": model, "messages": user(TURNS[name]), "tools": [ADD]}
    assert comparable(assembled(stream(http, **body))) == comparable(create(http, **body))


WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="<|>@[]{}"),
    min_size=1,
    max_size=8,
)
PARTS = st.one_of(
    st.builds(lambda text: {"think": text}, WORDS),
    st.builds(lambda text: {"say": text}, WORDS),
    st.builds(lambda text: {"call": "add", "args": {"a": text}}, WORDS),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(PARTS, min_size=1, max_size=5),
    display=st.sampled_from(["summarized", "omitted"]),
)
def test_any_stream_is_its_object(
    http: httpx.Client, model: str, parts: list[Json], display: str
) -> None:
    thinking = {"type": "adaptive", "display": display}
    body = {"model": model, "messages": user(parts), "tools": [ADD], "thinking": thinking}
    assert comparable(assembled(stream(http, **body))) == comparable(create(http, **body))


def test_a_stream_begins_with_a_ping(http: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": user({"say": "x"}), "max_tokens": 9, "stream": True}
    frames = http.post(PATH, json=body).text.split("\n\n")
    assert frames[1] == 'event: ping\ndata: {"type":"ping"}'


def test_an_error_in_a_stream_is_its_last_event(http: httpx.Client, model: str) -> None:
    messages = user([{"say": "one"}, {"fail": "server_error"}])
    *_, failed = stream(http, model=model, messages=messages)
    assert failed["error"]["type"] == "api_error"
    body = {"model": model, "messages": messages, "max_tokens": 99}
    whole = http.post(PATH, json=body)
    assert whole.status_code == 500
    assert whole.json()["error"] == failed["error"]
    assert whole.json()["request_id"] == whole.headers["request-id"]


def test_a_key_for_repetitions_gives_the_same_message_again(http: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": user({"call": "add", "args": {"a": 1}}), "tools": [ADD]}
    stored = {**body, "store": True, "max_tokens": 99}
    headers = {"idempotency-key": f"message-again-{model}"}
    first = http.post(PATH, json=stored, headers=headers)
    second = http.post(PATH, json=stored, headers=headers)
    assert second.headers["idempotent-replayed"] == "true"
    assert first.json() == second.json()
    streamed = http.post(PATH, json={**stored, "stream": True}, headers=headers)
    assert streamed.status_code == 400  # another body
