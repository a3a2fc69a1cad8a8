"""Objects and events of the doors, by the types of the official SDKs for Node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import INSTALLED, Run, script

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120)]
Json = dict[str, Any]

HEAD = """\
import type OpenAI from "openai";
import type Anthropic from "@anthropic-ai/sdk";
const is = <T>() => <V extends T>(value: V): V => value;
"""
TURNS: list[Any] = [
    [{"think": "Hm."}, {"say": "one two"}],
    [{"say": "I add."}, {"call": "add", "args": {"a": 1}}, {"call": "add", "args": {}}],
    {"refuse": "No."},
    {"say": "word ", "repeat": 50},
]
OWN = ("reasoning", "reasoning_content")
ADD = {"name": "add", "parameters": {"type": "object", "properties": {}}}


def frames_of(text: str) -> Iterator[Json]:
    for line in text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def plain(value: Any) -> Any:
    """Return a value without the reasoning, which OpenAI's chat does not have."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: plain(each) for name, each in value.items() if name not in OWN}


def asked(http: httpx.Client, path: str, **body: Any) -> httpx.Response:
    answer = http.post(path, json={"model": "scripted-chat", **body})
    assert answer.status_code == 200, answer.text
    return answer


def samples(http: httpx.Client) -> Iterator[tuple[str, Json]]:
    """Yield what the server answers, with the name of its type."""
    for turn in TURNS:
        messages = [{"role": "user", "content": script(turn)}]
        chat: Json = {"messages": messages, "max_completion_tokens": 30, "logprobs": True}
        chat["tools"] = [{"type": "function", "function": ADD}]
        yield "OpenAI.Chat.ChatCompletion", asked(http, "/chat/completions", **chat).json()
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
        for frame in frames_of(asked(http, "/chat/completions", **chat).text):
            yield "OpenAI.Chat.ChatCompletionChunk", frame
        sent: Json = {"messages": messages, "max_tokens": 30}
        sent["tools"] = [{"name": "add", "input_schema": ADD["parameters"]}]
        yield "Anthropic.Message", asked(http, "/messages", **sent).json()
        for frame in frames_of(asked(http, "/messages", **sent, stream=True).text):
            if frame["type"] != "ping":  # the SDK drops these before it types them
                yield "Anthropic.RawMessageStreamEvent", frame
    hi = [{"role": "user", "content": "hi"}]
    counted = asked(http, "/messages/count_tokens", messages=hi).json()
    yield "Anthropic.MessageTokensCount", counted
    yield "OpenAI.Completion", asked(http, "/completions", prompt="hi").json()
    for each in http.get("/models").json()["data"]:
        yield "OpenAI.Model", each
    for each in http.get("/models", headers={"anthropic-version": "1"}).json()["data"]:
        yield "Anthropic.ModelInfo", each


def test_what_the_doors_answer_has_the_types_of_the_sdks(
    run_node: Run, node: str, server: Any, tmp_path: Path
) -> None:
    compiler = INSTALLED / "typescript" / "bin" / "tsc"
    if not compiler.exists():
        pytest.skip("the clients for Node are not installed: make test-clients does it")
    with httpx.Client(base_url=server.api, timeout=30) as http:
        lines = [f"is<{kind}>()({json.dumps(plain(value))});" for kind, value in samples(http)]
    assert len(lines) > 60
    file = tmp_path / "samples.ts"
    file.write_text(HEAD + "\n".join(lines))
    (tmp_path / "node_modules").symlink_to(INSTALLED)
    options = ("--noEmit", "--strict", "--skipLibCheck", "--target", "es2022")
    resolved = ("--module", "nodenext", "--moduleResolution", "nodenext")
    run_node(node, compiler, *options, *resolved, file, cwd=tmp_path)
