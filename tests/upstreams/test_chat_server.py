"""The scripted Chat Completions server is one that other clients can use."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from tests.http.conftest import script, wait_until
from tests.upstreams.chat_faults import BEFORE_HEADERS, ERRORS, STREAMS
from tests.upstreams.chat_server import CONTEXT_LENGTH, MODEL, ScriptedChatServer
from tests.upstreams.chat_styles import STYLES

Json = dict[str, Any]

ADD: Json = {
    "type": "function",
    "function": {"name": "calc__add", "parameters": {"type": "object", "properties": {}}},
}
THINK_SAY_CALL = script(
    [{"think": "Add."}, {"say": "I add."}, {"mcp": "add", "args": {"a": 2}}], {"say": "42."}
)
ASKED: Json = {
    "model": MODEL,
    "messages": [{"role": "user", "content": THINK_SAY_CALL}],
    "tools": [ADD],
}


def post(upstream: ScriptedChatServer, style: str, **fields: Any) -> httpx.Response:
    url = f"{upstream.url(style)}/chat/completions"
    return httpx.post(url, json={**ASKED, **fields}, timeout=10)


def events_of(answer: httpx.Response) -> list[Json]:
    """Return the events of a stream, however its lines end."""
    assert answer.status_code == 200, answer.text
    lines = (line.removeprefix("data:").strip() for line in answer.text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_the_openai_client_reads_its_stream(upstream: ScriptedChatServer) -> None:
    with OpenAI(base_url=upstream.url("openai"), api_key="none") as client:
        messages: list[Any] = [*ASKED["messages"]]
        with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[ADD], stream_options={"include_usage": True}
        ) as stream:
            completion = stream.get_final_completion()
        [choice] = completion.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I add."
        [call] = choice.message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("calc__add", '{"a": 2}')
        assert completion.usage is not None
        assert completion.usage.completion_tokens > 10
        messages += [
            {"role": "assistant", "content": "I add.", "tool_calls": [call.to_dict()]},
            {"role": "tool", "tool_call_id": call.id, "content": "42"},
        ]
        after = client.chat.completions.create(model=MODEL, messages=messages, tools=[ADD])
        assert after.choices[0].message.content == "42."


def test_hosted_apis_refuse_a_call_without_its_result(upstream: ScriptedChatServer) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "Hello?"},
    ]
    with (
        OpenAI(base_url=upstream.url("openai"), api_key="none") as client,
        pytest.raises(BadRequestError, match="must be followed by tool messages"),
    ):
        client.chat.completions.create(model=MODEL, messages=messages)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_says_the_same_in_its_own_way(upstream: ScriptedChatServer, style: str) -> None:
    events = events_of(post(upstream, style, stream=True))
    told = json.dumps(events)
    for word in ("Add", "calc__add", "finish_reason"):
        assert word in told
    whole = post(upstream, style).json()["choices"][0]["message"]
    [call] = whole["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": 2}


@pytest.mark.parametrize("style", STYLES)
def test_the_styles_differ(upstream: ScriptedChatServer, style: str) -> None:
    twins = [name for name, row in STYLES.items() if row == STYLES[style]]
    assert twins == [style]


def test_the_tokens_of_a_prompt_can_be_counted(upstream: ScriptedChatServer) -> None:
    used = post(upstream, "vllm").json()["usage"]["prompt_tokens"]
    body = {"model": MODEL, "messages": ASKED["messages"], "tools": ASKED["tools"]}
    url = f"{upstream.origin}/vllm/tokenize"
    counted = httpx.post(url, json=body).json()
    assert (counted["count"], counted["max_model_len"]) == (used, CONTEXT_LENGTH)
    prompt = httpx.post(f"{upstream.origin}/llama_cpp/apply-template", json=body).json()["prompt"]
    url = f"{upstream.origin}/llama_cpp/tokenize"
    tokens = httpx.post(url, json={"content": prompt}).json()["tokens"]
    assert len(tokens) == used


def test_fields_that_a_server_does_not_take_are_refused(upstream: ScriptedChatServer) -> None:
    answer = post(upstream, "mistral", stream_options={"include_usage": True})
    assert answer.status_code == 422
    assert answer.json()["message"]["detail"][0]["loc"] == ["body", "stream_options"]
    upstream.refused_fields.add("seed")
    answer = post(upstream, "openai", seed=1)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seed")


def test_what_it_received_can_be_read(upstream: ScriptedChatServer) -> None:
    post(upstream, "ollama", seed=7)
    [chat] = upstream.chats
    assert (chat.style, chat.body["seed"]) == ("ollama", 7)


@pytest.mark.parametrize("fault", ERRORS)
def test_an_error_comes_instead_of_an_answer(upstream: ScriptedChatServer, fault: str) -> None:
    upstream.faults.append(fault)
    assert post(upstream, "openai").status_code == ERRORS[fault].status
    assert post(upstream, "openai").status_code == 200


@pytest.mark.parametrize("style", STYLES)
def test_every_style_says_that_a_prompt_is_too_long(
    upstream: ScriptedChatServer, style: str
) -> None:
    upstream.faults.append("context")
    answer = post(upstream, style, stream=True)
    assert answer.status_code in (400, 422)
    assert "{" not in answer.json().get("message", "")


@pytest.mark.parametrize("fault", [*STREAMS, *BEFORE_HEADERS])
def test_leaving_a_broken_stream_ends_it(upstream: ScriptedChatServer, fault: str) -> None:
    upstream.fault = fault
    limit = httpx.Timeout(5, read=0.2)
    url = f"{upstream.url('openai')}/chat/completions"
    try:
        with httpx.stream("POST", url, json={**ASKED, "stream": True}, timeout=limit) as answer:
            for _, _ in zip(answer.iter_raw(), range(20), strict=False):
                pass
    except httpx.HTTPError:
        pass
    wait_until(lambda: upstream.open_answers == 0)
