"""Chat Completions over the running server: what is answered, whole and in a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.http.conftest import MODELS, script, text_of
from tests.http.requests.test_media import data_url, png

Json = dict[str, Any]

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}},
}
CUSTOM = {"type": "custom", "custom": {"name": "note"}}
PATH = "/chat/completions"


def user(*turns: Any) -> list[Json]:
    return [{"role": "user", "content": script(*turns)}]


def complete(http: httpx.Client, **body: Any) -> Json:
    """Return a completion, which is as the official client's types say."""
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    ChatCompletion.model_validate(found, strict=True)
    return found


def stream(http: httpx.Client, **body: Any) -> list[Json]:
    """Return the chunks of a stream, each of which is as the official client's types say."""
    answer = http.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    *chunks, end = data_of(answer.text)
    assert end == "[DONE]"
    for chunk in chunks:
        if '"custom"' not in json.dumps(chunk):  # the client has no type for these in streams
            ChatCompletionChunk.model_validate(chunk, strict=True)
    return chunks


def data_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def assembled(chunks: list[Json]) -> Json:
    """Return the completion that chunks make up, as a client puts it together."""
    message: Json = {}
    calls: list[Json] = []
    finish, logprobs, usage = None, [], None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = dict(choice["delta"])
            for piece in delta.pop("tool_calls", ()):
                if piece["index"] == len(calls):
                    calls.append({})
                grow(calls[piece.pop("index")], piece)
            grow(message, delta)
            logprobs += (choice["logprobs"] or {}).get("content", [])
            finish = choice["finish_reason"] or finish
    if calls:
        message["tool_calls"] = calls
    first = {name: chunks[0][name] for name in ("id", "created", "model", "service_tier")}
    choice = {"message": message, "logprobs": logprobs, "finish_reason": finish}
    return {**first, "choices": [choice], "usage": usage}


def grow(into: Json, piece: Mapping[str, Any]) -> None:
    for name, value in piece.items():
        if isinstance(value, dict):
            grow(into.setdefault(name, {}), value)
        elif name in into and name not in ("role", "type", "id"):
            into[name] += value
        else:
            into[name] = value


def comparable(completion: Json) -> Json:
    """Return what is the same in a stream and in an object of two runs of one request."""
    [choice] = completion["choices"]
    message = {name: value for name, value in choice["message"].items() if value}
    message["tool_calls"] = [
        {name: value for name, value in call.items() if name != "id"}
        for call in message.get("tool_calls", ())
    ]
    logprobs = choice["logprobs"]
    return {
        "message": message,
        "finish_reason": choice["finish_reason"],
        "logprobs": logprobs.get("content") if isinstance(logprobs, dict) else logprobs or None,
        "usage": {
            **(completion["usage"] or {}),
            "prompt_tokens_details": "the first run fills the cache",
        },
        "model": completion["model"],
    }


# --- answers --------------------------------------------------------------------------------------


def test_an_answer_has_its_text_its_reasoning_and_its_usage(http: httpx.Client, model: str) -> None:
    found = complete(http, model=model, messages=user([{"think": "hm"}, {"say": "one two"}]))
    [choice] = found["choices"]
    assert found["id"].startswith("chatcmpl-")
    assert (found["object"], found["model"]) == ("chat.completion", model)
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {
        "role": "assistant",
        "content": "one two",
        "refusal": None,
        "reasoning_content": "hm",
        "reasoning": "hm",
    }
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_calls_are_answered_until_the_model_is_done(http: httpx.Client, model: str) -> None:
    messages = user(
        [{"call": "add", "args": {"a": 1}}, {"call": "add", "args": {"a": 2}}], {"say": "3"}
    )
    first = complete(http, model=model, messages=messages, tools=[ADD])["choices"][0]
    calls = first["message"]["tool_calls"]
    assert first["finish_reason"] == "tool_calls"
    assert first["message"]["content"] is None
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"a": 1}, {"a": 2}]
    messages.append(first["message"])
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
    second = complete(http, model=model, messages=messages, tools=[ADD])["choices"][0]
    assert (second["message"]["content"], second["finish_reason"]) == ("3", "stop")


def test_functions_of_the_first_days_are_called_once_and_by_name(
    http: httpx.Client, model: str
) -> None:
    messages = user({"call": "add", "args": {"a": 1}}, {"say": "done"})
    offered = {"functions": [ADD["function"]], "function_call": "auto"}
    first = complete(http, model=model, messages=messages, **offered)["choices"][0]
    assert first["finish_reason"] == "function_call"
    assert first["message"]["function_call"]["name"] == "add"
    assert "tool_calls" not in first["message"]
    streamed = assembled(stream(http, model=model, messages=messages, **offered))["choices"][0]
    assert streamed["message"]["function_call"] == first["message"]["function_call"]
    messages += [first["message"], {"role": "function", "name": "add", "content": "ok"}]
    second = complete(http, model=model, messages=messages, **offered)["choices"][0]
    assert second["message"]["content"] == "done"


def test_a_custom_tool_gets_free_text(http: httpx.Client, model: str) -> None:
    messages = user({"custom": "note", "input": "a\nb"}, {"say": "noted"})
    first = complete(http, model=model, messages=messages, tools=[CUSTOM])["choices"][0]
    [call] = first["message"]["tool_calls"]
    assert call["custom"] == {"name": "note", "input": "a\nb"}
    messages += [first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]
    second = complete(http, model=model, messages=messages, tools=[CUSTOM])["choices"][0]
    assert second["message"]["content"] == "noted"


def test_a_refusal_is_no_content(http: httpx.Client) -> None:
    found = complete(http, model="scripted-chat", messages=user({"refuse": "No."}))
    message = found["choices"][0]["message"]
    assert (message["refusal"], message["content"]) == ("No.", None)


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_an_answer_may_be_one_token_long(http: httpx.Client, model: str, limit: str) -> None:
    messages = user({"say": "one two three four"})
    found = complete(http, model=model, messages=messages, **{limit: 1})
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 1


def test_a_schema_is_what_is_written(http: httpx.Client, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    given = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    messages = [{"role": "user", "content": "Write."}]
    found = complete(http, model=model, messages=messages, response_format=given)
    assert isinstance(json.loads(found["choices"][0]["message"]["content"])["a"], int)


def test_log_probabilities_are_those_of_the_tokens(http: httpx.Client, model: str) -> None:
    asked = {"model": model, "messages": user({"say": "one two"}), "logprobs": True}
    found = complete(http, **asked, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert "".join(each["token"] for each in found) == "one two"
    assert all(len(each["top_logprobs"]) == 2 for each in found)
    assert complete(http, model=model, messages=asked["messages"])["choices"][0]["logprobs"] is None


def test_files_are_read(http: httpx.Client, model: str) -> None:
    file = {"file_data": data_url(b"Psalms are sung.", "text/plain"), "filename": "a.txt"}
    part = {"type": "file", "file": file}
    found = complete(http, model=model, messages=[{"role": "user", "content": [part]}])
    same = [{"role": "user", "content": [{"type": "input_file", **file}]}]
    answer = http.post("/responses", json={"model": model, "input": same}).json()
    assert found["usage"]["prompt_tokens"] == answer["usage"]["input_tokens"] > 5


def test_images_are_seen(http: httpx.Client) -> None:
    parts = [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": data_url(png()), "detail": "low"}},
    ]
    messages = [{"role": "user", "content": parts}]
    given = {"type": "input_image", "image_url": data_url(png()), "detail": "low"}
    same = [{"role": "user", "content": [{"type": "input_text", "text": "See:"}, given]}]
    found = complete(http, model="scripted-chat", messages=messages)
    answer = http.post("/responses", json={"model": "scripted-chat", "input": same}).json()
    assert found["usage"]["prompt_tokens"] == answer["usage"]["input_tokens"]


def test_nothing_is_stored_unless_the_client_asks(http: httpx.Client, model: str) -> None:
    messages = user({"say": "kept"})
    kept = complete(http, model=model, messages=messages, store=True, metadata={"a": "b"})
    found = http.get(f"/responses/{kept['id'].replace('chatcmpl-', 'resp_')}")
    assert (text_of(found.json()), found.json()["metadata"]) == ("kept", {"a": "b"})
    gone = complete(http, model=model, messages=messages)
    answer = http.get(f"/responses/{gone['id'].replace('chatcmpl-', 'resp_')}")
    assert answer.status_code == 404


# --- streams --------------------------------------------------------------------------------------

TURNS: Mapping[str, Any] = {
    "a text": {"say": "one two three"},
    "a thought": [{"think": "so it is"}, {"say": "it is"}],
    "only a thought": {"think": "hm"},
    "calls": [{"call": "add", "args": {"a": 1}}, {"call": "add", "args": {}}],
    "a text and a call": [{"think": "t"}, {"say": "I add."}, {"call": "add", "args": {"a": "é"}}],
    "free text": {"custom": "note", "input": "x = 1\n"},
    "a refusal": [{"say": "I "}, {"refuse": "will not"}],
    "a cut": [{"say": "one two"}, {"say": " three", "finish": "length"}],
}


@pytest.mark.parametrize("name", TURNS)
def test_a_stream_is_the_object_bit_by_bit(http: httpx.Client, model: str, name: str) -> None:
    if name == "a refusal" and model == "scripted-harmony":
        pytest.skip("Harmony has no refusals")
    body = {"model": model, "messages": user(TURNS[name]), "tools": [ADD, CUSTOM]}
    chunks = stream(http, **body, stream_options={"include_usage": True})
    assert comparable(assembled(chunks)) == comparable(complete(http, **body))


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
@given(parts=st.lists(PARTS, min_size=1, max_size=5), with_logprobs=st.booleans())
def test_any_stream_is_its_object(
    http: httpx.Client, model: str, parts: list[Json], with_logprobs: bool
) -> None:
    body = {"model": model, "messages": user(parts), "tools": [ADD], "logprobs": with_logprobs}
    chunks = stream(http, **body, stream_options={"include_usage": True})
    assert comparable(assembled(chunks)) == comparable(complete(http, **body))


def test_usage_is_in_a_chunk_of_its_own_and_only_if_asked_for(
    http: httpx.Client, model: str
) -> None:
    body = {"model": model, "messages": user({"say": "hi"})}
    with_usage = stream(http, **body, stream_options={"include_usage": True})
    assert [chunk["usage"] is None for chunk in with_usage] == [True] * (len(with_usage) - 1) + [
        False
    ]
    assert with_usage[-1]["choices"] == []
    assert not any("usage" in chunk for chunk in stream(http, **body))


def test_all_chunks_of_a_stream_name_the_same_completion(http: httpx.Client, model: str) -> None:
    chunks = stream(http, model=model, messages=user({"say": "one two"}))
    names = ("id", "object", "created", "model")
    assert len({tuple(chunk[name] for name in names) for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_an_error_in_a_stream_is_a_frame_before_its_end(http: httpx.Client, model: str) -> None:
    messages = user([{"say": "one"}, {"fail": "server_error"}])
    answer = http.post(PATH, json={"model": model, "messages": messages, "stream": True})
    *chunks, failed, end = data_of(answer.text)
    assert end == "[DONE]"
    assert list(failed) == ["error"]
    assert failed["error"]["code"] == "server_error"
    assert all(choice["finish_reason"] is None for each in chunks for choice in each["choices"])
    whole = http.post(PATH, json={"model": model, "messages": messages})
    assert whole.status_code == 500
    assert whole.json()["error"] == failed["error"]


def test_a_key_for_repetitions_gives_the_same_completion_again(
    http: httpx.Client, model: str
) -> None:
    body = {"model": model, "messages": user({"call": "add", "args": {"a": 1}}), "tools": [ADD]}
    headers = {"idempotency-key": f"again-{model}"}
    first = http.post(PATH, json={**body, "store": True}, headers=headers)
    second = http.post(PATH, json={**body, "store": True}, headers=headers)
    assert second.headers["idempotent-replayed"] == "true"
    assert first.json() == second.json()
    unstored = http.post(PATH, json=body, headers=headers)
    assert unstored.headers["x-antiphon-ignored"] == "Idempotency-Key"


# --- one conversation, two doors ------------------------------------------------------------------

CONVERSATION: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "text", "text": "Count."}]},
    {"role": "user", "content": "Add 1."},
    {
        "role": "assistant",
        "content": "I add.",
        "reasoning": "They want a sum.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
]
ITEMS: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": [{"type": "input_text", "text": "Count."}]},
    {"role": "user", "content": "Add 1."},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "They want a sum."}]},
    {"role": "assistant", "content": "I add."},
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "c1", "output": "ok"},
]


def test_a_conversation_gives_the_same_prompt_through_both_doors(server: Any, model: str) -> None:
    prompts = []
    tool = {"type": "function", **ADD["function"], "strict": False}
    with httpx.Client(base_url=server.api) as http:
        for path, body in (
            (PATH, {"messages": CONVERSATION, "tools": [ADD]}),
            ("/responses", {"input": ITEMS, "tools": [tool]}),
        ):
            answer = http.post(path, json={"model": model, **body})
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            prompts.append(usage.get("prompt_tokens") or usage["input_tokens"])
    assert prompts[0] == prompts[1] > 20


def test_a_thought_is_read_again_until_its_turn_is_over(http: httpx.Client, model: str) -> None:
    called = CONVERSATION[:5]
    over = [*called, {"role": "assistant", "content": "2."}, {"role": "user", "content": "Thanks."}]

    def tokens(messages: list[Json]) -> int:
        found = complete(http, model=model, messages=messages, tools=[ADD])
        count: int = found["usage"]["prompt_tokens"]
        return count

    def without_thought(messages: list[Json]) -> list[Json]:
        return [{k: v for k, v in each.items() if k != "reasoning"} for each in messages]

    assert tokens(called) > tokens(without_thought(called))
    assert tokens(over) == tokens(without_thought(over))


def test_both_models_are_behind_this_door(http: httpx.Client) -> None:
    for name in MODELS:
        found = complete(http, model=name, messages=user({"say": "hi"}))
        assert found["choices"][0]["message"]["content"] == "hi"
