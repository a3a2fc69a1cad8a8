"""One question in the words of each API, and what its answer held."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
from msgspec import Struct

from benchmarks.real.bfcl import Call
from benchmarks.real.servers import Target

LIMIT_S = 600.0
UNREADABLE = "(no JSON)"


class Question(Struct, frozen=True, kw_only=True):
    """Messages are Responses' input items; `_chat_messages` has their chat form."""

    items: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    is_strict: bool = False
    tool_choice: str = "auto"
    schema: Mapping[str, Any] | None = None
    max_tokens: int = 500


class Answer(Struct, kw_only=True):
    text: str = ""
    calls: Sequence[Call] = ()
    items: Sequence[Mapping[str, Any]] = ()
    """What the next turn shows of this one."""

    error: str | None = None
    is_cut: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    first_s: float = 0.0
    """To the first event that holds text, reasoning or a call."""

    total_s: float = 0.0
    cpu_s: float = 0.0
    """Of all processes of the server."""


def ask(target: Target, question: Question, *, stream: bool = True) -> Answer:
    """Ask at temperature 0. What the server refuses is the error of the answer."""
    path = "chat/completions" if target.is_chat else "responses"
    body = _chat_body(target, question) if target.is_chat else _body(target, question)
    started_at, cpu_s = time.monotonic(), target.process.cpu_s()
    first_at: float | None = None
    frames: list[Any] = []
    with httpx.stream(
        "POST", f"{target.url}/v1/{path}", json={**body, "stream": stream}, timeout=LIMIT_S
    ) as response:
        if response.is_error:
            return Answer(error=response.read().decode())
        if stream:
            for frame in _frames(response):
                if first_at is None and _shows(frame):
                    first_at = time.monotonic()
                frames.append(frame)
        else:
            frames.append(json.loads(response.read()))
    ended_at = time.monotonic()
    read = read_chat if target.is_chat else read_responses
    answer = read(frames)
    answer.first_s = (first_at or ended_at) - started_at
    answer.total_s = ended_at - started_at
    answer.cpu_s = target.process.cpu_s() - cpu_s
    return answer


def _body(target: Target, question: Question) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": target.model,
        "input": list(question.items),
        "temperature": 0,
        "max_output_tokens": question.max_tokens,
        "store": False,
    }
    if question.tools:
        strict = {"type": "function", "strict": question.is_strict}
        body |= {"tools": [{**strict, **tool} for tool in question.tools]}
        body |= {"tool_choice": question.tool_choice}
    if question.schema is not None:
        schema = {"type": "json_schema", "name": "answer", "strict": question.is_strict}
        body["text"] = {"format": {**schema, "schema": question.schema}}
    return body


def _chat_body(target: Target, question: Question) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": target.model,
        "messages": _chat_messages(question.items),
        "temperature": 0,
        "max_tokens": question.max_tokens,
        "stream_options": {"include_usage": True},
    }
    if question.tools:
        strict = {"strict": question.is_strict}
        tools = [{"type": "function", "function": {**tool, **strict}} for tool in question.tools]
        body |= {"tools": tools, "tool_choice": question.tool_choice}
    if question.schema is not None:
        schema = {"name": "answer", "strict": question.is_strict, "schema": question.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _chat_messages(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.get("type") == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif item.get("type") == "function_call_output":
            output = {"tool_call_id": item["call_id"], "content": item["output"]}
            messages.append({"role": "tool", **output})
        else:
            content = item["content"]
            if not isinstance(content, str):
                content = "".join(part["text"] for part in content)
            messages.append({"role": item["role"], "content": content})
    return messages


def _frames(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def _shows(frame: Any) -> bool:
    if "choices" in frame:
        deltas = [choice.get("delta") or {} for choice in frame["choices"]]
        return any(value for delta in deltas for key, value in delta.items() if key != "role")
    return "delta" in frame


def read_responses(frames: Sequence[Any]) -> Answer:
    """Read the events of a stream, or a response alone."""
    ends = ("response.completed", "response.incomplete", "response.failed")
    last = frames[-1] if frames else {}
    response = last.get("response", last) if last.get("type", ends[0]) in ends else last
    if "output" not in response or response.get("error"):
        return Answer(error=json.dumps(response.get("error") or last))
    output, usage = response["output"], response.get("usage") or {}
    messages = [item for item in output if item["type"] == "message"]
    parts = [part for message in messages for part in message["content"]]
    calls = [item for item in output if item["type"] == "function_call"]
    return Answer(
        text="".join(part.get("text", "") for part in parts),
        calls=[(call["name"], _arguments(call["arguments"])) for call in calls],
        items=[_shown_again(item) for item in output],
        is_cut=response.get("status") == "incomplete",
        prompt_tokens=usage.get("input_tokens", 0),
        cached_tokens=(usage.get("input_tokens_details") or {}).get("cached_tokens", 0),
        tokens=usage.get("output_tokens", 0),
    )


def _shown_again(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in item.items() if key != "id" and value is not None}


def read_chat(frames: Sequence[Any]) -> Answer:
    """Read the chunks of a stream, or a completion alone."""
    answer, calls = Answer(), dict[int, dict[str, str]]()
    for frame in frames:
        if frame.get("error"):
            return Answer(error=json.dumps(frame["error"]))
        for choice in frame.get("choices", ()):
            delta = choice.get("delta") or choice.get("message") or {}
            answer.text += delta.get("content") or ""
            answer.is_cut = answer.is_cut or choice.get("finish_reason") == "length"
            for position, piece in enumerate(delta.get("tool_calls") or ()):
                call = calls.setdefault(piece.get("index", position), {"name": "", "arguments": ""})
                call["id"] = piece.get("id") or call.get("id", "")
                for key in ("name", "arguments"):
                    call[key] += (piece.get("function") or {}).get(key) or ""
        usage = frame.get("usage") or {}
        answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
        answer.tokens = usage.get("completion_tokens", answer.tokens)
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens", answer.cached_tokens)
    said = [{"role": "assistant", "content": answer.text}] if answer.text else []
    answer.calls = [(call["name"], _arguments(call["arguments"])) for call in calls.values()]
    answer.items = said + [
        {
            "type": "function_call",
            "call_id": call["id"],
            "name": call["name"],
            "arguments": call["arguments"],
        }
        for call in calls.values()
    ]
    return answer


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return UNREADABLE
