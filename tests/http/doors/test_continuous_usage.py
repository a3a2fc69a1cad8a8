"""`stream_options.continuous_usage_stats`: each chunk counts the tokens up to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletionChunk
from tests.http.conftest import frames, script
from tests.http.doors.test_chat import data_of
from tests.upstreams.chat_server import MODEL, scripted_chat_server

Json = dict[str, Any]

CALL = {"call": "look", "args": {"q": "x" * 40}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
ASK = script({"say": "One two three four five six."})
CHAT: dict[str, Json] = {
    "text": {"messages": [{"role": "user", "content": ASK}]},
    "reasoning": {
        "messages": [
            {"role": "user", "content": script([{"think": "I think of it."}, {"say": "Done now."}])}
        ]
    },
    "a call": {
        "messages": [{"role": "user", "content": script([{"say": "Let me."}, CALL])}],
        "tools": [TOOL],
    },
    "a cut": {"messages": [{"role": "user", "content": ASK}], "max_tokens": 3},
    "two choices": {"messages": [{"role": "user", "content": ASK}], "n": 2},
    "log probabilities": {"messages": [{"role": "user", "content": ASK}], "logprobs": True},
    "stored": {"messages": [{"role": "user", "content": ASK}], "store": True},
}
COMPLETIONS: dict[str, Json] = {
    "a prompt": {"prompt": ASK, "max_tokens": 30},
    "prompts": {"prompt": [ASK, ASK], "max_tokens": 30, "n": 2},
    "an echo": {"prompt": ASK, "echo": True, "logprobs": 1, "max_tokens": 5},
}
CASES = [
    *(("/chat/completions", name, body) for name, body in CHAT.items()),
    *(("/completions", name, body) for name, body in COMPLETIONS.items()),
]
BOTH = {"include_usage": True, "continuous_usage_stats": True}


def stream(http: httpx.Client, path: str, options: Json, body: Json) -> list[Json]:
    """Return the chunks of a stream, of which no field was ignored."""
    sent = {"model": "scripted-chat", **body, "stream": True, "stream_options": options}
    answer = http.post(path, json=sent)
    assert answer.status_code == 200, answer.text
    assert "x-antiphon-ignored" not in answer.headers
    *chunks, end = data_of(answer.text)
    assert end == "[DONE]"
    return chunks


@pytest.mark.parametrize(
    ("path", "body"),
    [(path, body) for path, _, body in CASES],
    ids=[name for _, name, _ in CASES],
)
def test_each_chunk_counts_the_tokens_up_to_it(http: httpx.Client, path: str, body: Json) -> None:
    *chunks, last = stream(http, path, BOTH, body)
    counts = [chunk["usage"] for chunk in chunks]
    for before, after in pairwise(counts):
        assert before["completion_tokens"] <= after["completion_tokens"]
        assert before["prompt_tokens"] <= after["prompt_tokens"]
    for each in counts:
        assert each["prompt_tokens"] > 0
        assert each["total_tokens"] == each["prompt_tokens"] + each["completion_tokens"]
    assert (last["choices"], last["usage"]) == ([], counts[-1])
    plain = stream(http, path, {"include_usage": True}, body)
    assert plain[-1]["usage"]["total_tokens"] == last["usage"]["total_tokens"]
    assert len({each["completion_tokens"] for each in counts}) > 2
    if path == "/chat/completions":
        for chunk in chunks:
            ChatCompletionChunk.model_validate(chunk)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, [False, False]),
        ({"include_usage": True}, [False, True]),
        ({"continuous_usage_stats": True}, [True, False]),
        (BOTH, [True, True]),
    ],
)
def test_counts_are_shown_where_they_are_asked_for(
    http: httpx.Client, options: Json, shown: list[bool]
) -> None:
    chunks = stream(http, "/chat/completions", options, CHAT["text"])
    choices = [chunk for chunk in chunks if chunk["choices"]]
    in_chunks = {chunk.get("usage") is not None for chunk in choices}
    assert [in_chunks, len(chunks) > len(choices)] == [{shown[0]}, shown[1]]


def test_the_events_of_a_response_count_as_well(http: httpx.Client) -> None:
    body = {"model": "scripted-chat", "input": ASK, "stream": True}
    options = {"continuous_usage_stats": True}
    events = frames(http.post("/responses", json={**body, "stream_options": options}).text)
    counted = [event["usage"] for event in events if "usage" in event]
    outputs = [usage["output_tokens"] for usage in counted]
    assert outputs == sorted(outputs)
    assert counted[-1]["input_tokens"] == events[-1]["response"]["usage"]["input_tokens"]
    assert [event["type"] for event in events if "usage" not in event] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    plain = frames(http.post("/responses", json=body).text)
    assert not [event for event in plain if "usage" in event]


@pytest.fixture(scope="module")
def upstream(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("usage")
    file = folder / "chat.toml"
    with scripted_chat_server() as server:
        url = server.url("openai")
        file.write_text(
            f'[[models]]\nname = "far"\nengine = "chat"\nurl = "{url}"\nmodel = "{MODEL}"\n',
            encoding="utf-8",
        )
        with serve_from(folder, config=file) as running, httpx.Client(base_url=running.api) as http:
            yield http


@pytest.mark.slow
def test_nothing_is_counted_before_the_upstream_has_told_it(upstream: httpx.Client) -> None:
    body = {**CHAT["text"], "model": "far"}
    *chunks, last = stream(upstream, "/chat/completions", BOTH, body)
    counts = [chunk["usage"] for chunk in chunks]
    assert counts[-1] == last["usage"]
    assert all(each in (None, last["usage"]) for each in counts)
