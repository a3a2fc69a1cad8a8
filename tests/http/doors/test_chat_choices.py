"""Several answers to one chat request: as one object, in one stream, and when one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.http.conftest import script, wait_until
from tests.http.doors.test_chat import data_of

Json = dict[str, Any]
PATH = "/chat/completions"
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

# Each of these is played by every choice alike.
PARTS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"say": st.text(min_size=1, max_size=20)}),
        st.fixed_dictionaries({"think": st.text(min_size=1, max_size=20)}),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture
def http(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30) as client:
        yield client


def asked(n: int, *turns: Any, **body: Any) -> Json:
    messages = [{"role": "user", "content": script(*turns)}]
    return {"model": "scripted-chat", "n": n, "messages": messages, **body}


def complete(http: httpx.Client, body: Json) -> Json:
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    ChatCompletion.model_validate(found, strict=True)
    return found


def chunks_of(http: httpx.Client, body: Json) -> list[Json]:
    answer = http.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    *chunks, end = data_of(answer.text)
    assert end == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    return chunks


def texts_of(chunks: list[Json]) -> dict[int, tuple[str, str]]:
    """Return the text and the reasoning of each choice."""
    texts: dict[int, tuple[str, str]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text, thought = texts.get(choice["index"], ("", ""))
            delta = choice["delta"]
            texts[choice["index"]] = (
                text + (delta.get("content") or ""),
                thought + (delta.get("reasoning_content") or ""),
            )
    return texts


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(2, 4), parts=PARTS)
def test_the_choices_of_a_stream_are_those_of_the_object(
    http: httpx.Client, model: str, n: int, parts: list[Json]
) -> None:
    body = asked(n, parts, model=model)
    whole = complete(http, body)
    assert [choice["index"] for choice in whole["choices"]] == list(range(n))
    chunks = chunks_of(http, {**body, "stream_options": {"include_usage": True}})
    assert len({chunk["id"] for chunk in chunks}) == 1
    *_, last = chunks
    del last["usage"]["prompt_tokens_details"], whole["usage"]["prompt_tokens_details"]  # cached
    assert last["usage"] == whole["usage"]
    assert texts_of(chunks) == {
        choice["index"]: (
            choice["message"]["content"] or "",
            choice["message"].get("reasoning_content") or "",
        )
        for choice in whole["choices"]
    }
    ends = [choice for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(choice["index"] for choice in ends) == list(range(n))


def test_the_usage_counts_the_prompt_once_and_every_answer(http: httpx.Client) -> None:
    one, three = (complete(http, asked(n, {"say": "a b c"})) for n in (1, 3))
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]
    total = three["usage"]["prompt_tokens"] + three["usage"]["completion_tokens"]
    assert three["usage"]["total_tokens"] == total


def test_calls_come_in_every_choice(http: httpx.Client) -> None:
    body = asked(2, {"call": "add", "args": {"a": 1}}, tools=[ADD])
    for choice in complete(http, body)["choices"]:
        [call] = choice["message"]["tool_calls"]
        assert (call["function"]["name"], choice["finish_reason"]) == ("add", "tool_calls")
    started = [
        choice["index"]
        for chunk in chunks_of(http, body)
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
        if call.get("id")
    ]
    assert sorted(started) == [0, 1]


def test_the_official_client_reads_them(server: Any) -> None:
    body = asked(3, {"say": "One."})
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=30) as official:
        answer = official.chat.completions.create(**body)
        assert [each.message.content for each in answer.choices] == ["One."] * 3
        with official.chat.completions.stream(**body) as stream:
            found = stream.get_final_completion()
        assert [each.message.content for each in found.choices] == ["One."] * 3


def test_each_answer_is_stored_if_the_client_asks(http: httpx.Client) -> None:
    before = {each["id"] for each in http.get("/responses").json()["data"]}
    kept = complete(http, asked(2, {"say": "kept"}, store=True))
    after = [each["id"] for each in http.get("/responses").json()["data"]]
    assert len(set(after) - before) == 2
    found = http.get(f"{PATH}/{kept['id']}").json()
    assert found["choices"] == kept["choices"][:1]


def test_an_answer_that_fails_fails_the_request(http: httpx.Client) -> None:
    answer = http.post(PATH, json=asked(2, {"fail": "server_error"}))
    assert answer.status_code == 500
    assert answer.json()["error"]["message"]
    streamed = http.post(PATH, json={**asked(2, {"fail": "server_error"}), "stream": True})
    *frames, end = data_of(streamed.text)
    assert end == "[DONE]"
    assert any("error" in frame for frame in frames)


def test_a_client_that_leaves_ends_every_run(server: Any, http: httpx.Client) -> None:
    engine = server.engine("scripted-chat")
    aborted = engine.aborted
    body = {**asked(3, {"say": "word ", "repeat": 100_000}), "stream": True}
    with http.stream("POST", PATH, json=body) as answer:
        next(answer.iter_bytes())
    wait_until(lambda: engine.aborted == aborted + 3)


@pytest.mark.parametrize("n", [0, -1, 129, 1.5, "2"])
def test_a_number_of_answers_that_cannot_be_is_refused(http: httpx.Client, n: Any) -> None:
    answer = http.post(PATH, json=asked(n, {"say": "no"}))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


def test_several_answers_have_no_idempotency_key(http: httpx.Client) -> None:
    headers = {"idempotency-key": "several"}
    body = asked(2, {"say": "no"}, store=True)
    answer = http.post(PATH, json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
