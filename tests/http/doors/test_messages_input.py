"""What the messages and blocks of a request mean: the items that they stand for."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest
from tests.http.conftest import script
from tests.http.doors.test_chat_requests import plain
from tests.http.doors.test_messages_requests import (
    CLEAR,
    FLAT,
    HI,
    PATH,
    RESULT,
    TEXT,
    TOOL,
    USE,
    Json,
    read,
)

CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "QQ=="}
URL = {"type": "url", "url": "https://a.example/b"}


def text(value: str) -> Json:
    return {"type": "input_text", "text": value}


def output(*parts: Json) -> Json:
    return {"type": "function_call_output", "call_id": "c", "output": [*parts]}


def thought(value: str | None, **seal: str) -> Json:
    content = [] if value is None else [{"type": "reasoning_text", "text": value}]
    return {"type": "reasoning", "summary": [], **({"content": content} if content else {}), **seal}


MESSAGES: Mapping[str, tuple[list[Json], list[Json]]] = {
    "a system message in between": (
        [*HI, {"role": "system", "content": [TEXT]}],
        [*HI, {"role": "system", "content": [text("t")]}],
    ),
    "parts": (
        [
            {
                "role": "user",
                "content": [
                    {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                    {"type": "image", "source": {**PDF, "media_type": "image/png"}},
                    {"type": "image", "source": URL},
                    {"type": "image", "source": {"type": "file", "file_id": "file-1"}},
                    {"type": "document", "source": PDF},
                    {"type": "document", "source": URL, "context": "c"},
                    {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
                    {
                        "type": "document",
                        "title": "T",
                        "source": {"type": "content", "content": [TEXT]},
                    },
                    {"type": "search_result", "source": "s", "title": "T", "content": [TEXT]},
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [
                    text("t"),
                    {
                        "type": "input_image",
                        "image_url": "data:image/png;base64,QQ==",
                        "detail": "auto",
                    },
                    {
                        "type": "input_image",
                        "image_url": "https://a.example/b",
                        "detail": "auto",
                    },
                    {"type": "input_image", "file_id": "file-1", "detail": "auto"},
                    {
                        "type": "input_file",
                        "file_data": "data:application/pdf;base64,QQ==",
                        "filename": "document.pdf",
                    },
                    text("c"),
                    {"type": "input_file", "file_url": "https://a.example/b"},
                    {"type": "input_file", "file_id": "file-1"},
                    text("T"),
                    text("t"),
                    text("T\ns\n\nt"),
                ],
            }
        ],
    ),
    "calls": (
        [
            {"role": "assistant", "content": [TEXT, USE]},
            {"role": "user", "content": [{**RESULT, "content": "r"}, TEXT]},
        ],
        [
            {"role": "assistant", "content": "t", "phase": "commentary"},
            CALLED,
            {"type": "function_call_output", "call_id": "c", "output": "r"},
            {"role": "user", "content": [text("t")]},
        ],
    ),
    "a call that failed": (
        [
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [{**RESULT, "is_error": True, "content": "r"}]},
        ],
        [CALLED, {"type": "function_call_output", "call_id": "c", "output": "Error: r"}],
    ),
    "parts of a call that failed": (
        [
            {"role": "assistant", "content": [USE]},
            {
                "role": "user",
                "content": [
                    {
                        **RESULT,
                        "is_error": True,
                        "content": [TEXT, {"type": "tool_reference", "tool_name": "g"}],
                    }
                ],
            },
        ],
        [CALLED, output(text("Error: "), text("t"), text("The tool g can be called."))],
    ),
    "a call without a result": (
        [{"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}],
        [CALLED, {"type": "function_call_output", "call_id": "c", "output": ""}],
    ),
    "thoughts": (
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "r", "signature": "s"},
                    {"type": "thinking", "thinking": "", "signature": "s"},
                    {"type": "redacted_thinking", "data": "d"},
                    {"type": "thinking", "thinking": "", "signature": ""},
                    TEXT,
                    TEXT,
                ],
            },
            *HI,
        ],
        [
            thought("r", encrypted_content="s"),
            thought(None, encrypted_content="s"),
            thought(None, encrypted_content="d"),
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "t", "annotations": [], "logprobs": []}]
                * 2,
                "phase": "final_answer",
            },
            *HI,
        ],
    ),
    "two answers": (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [TEXT]}, *HI],
        [
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": "t", "phase": "final_answer"},
            *HI,
        ],
    ),
    "nothing": (
        [
            {"role": "assistant", "content": []},
            {"role": "user", "content": [{**TEXT, "text": ""}]},
            *HI,
        ],
        HI,
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_items(name: str) -> None:
    messages, items = MESSAGES[name]
    incoming = read({"messages": messages})
    expected = [{"type": "message", **item} if "role" in item else item for item in items]
    assert plain(incoming.decoded.request)["input"] == expected
    assert incoming.decoded.ignored == ()


ADDED = {"type": "additional_tools", "role": "developer", "tools": [{**FLAT, "name": "g"}]}


def test_a_deferred_tool_is_there_once_a_message_names_it() -> None:
    tools = [TOOL, {**TOOL, "name": "g", "defer_loading": True}]
    request = plain(read({"tools": tools}).decoded.request)
    assert request["tools"] == [FLAT]
    reference = {"type": "tool_reference", "tool_name": "g"}
    found = [
        {"role": "assistant", "content": [USE, {**USE, "id": "d"}]},
        {
            "role": "user",
            "content": [
                {**RESULT, "content": [reference]},
                {**RESULT, "tool_use_id": "d", "content": [reference]},
            ],
        },
    ]
    request = plain(read({"tools": tools, "messages": found}).decoded.request)
    kinds = [item["type"] for item in request["input"]]
    assert kinds == ["function_call"] * 2 + ["function_call_output"] * 2 + ["additional_tools"]
    assert request["input"][-1] == ADDED
    for tool in (
        {"type": "tool_reference", "name": "g"},
        {"type": "tool_definition", "definition": {**TOOL, "name": "g"}},
        {"type": "tool_definition", "definition": {**TOOL, "type": "custom", "name": "g"}},
    ):
        block = {"type": "tool_addition", "tool": tool}
        messages = [*HI, {"role": "system", "content": [block, TEXT]}]
        request = plain(read({"tools": tools, "messages": messages}).decoded.request)
        added, message = request["input"][1:]
        assert (added, message["role"]) == (ADDED, "system")


def test_a_message_of_the_system_may_change_the_effort() -> None:
    messages = [*HI, {"role": "system", "output_config": {"effort": "low"}}]
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    assert plain(read({"messages": messages}).decoded.request)["input"][1:] == [update]
    off = {"messages": messages, "thinking": {"type": "disabled"}}
    assert plain(read(off).decoded.request)["input"][1:] == []


def test_a_model_adds_tools_while_it_is_talked_to(http: httpx.Client, model: str) -> None:
    block = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
    messages = [
        {"role": "user", "content": script({"call": "f", "args": {"a": 1}})},
        {"role": "system", "content": [block], "output_config": {"effort": "low"}},
    ]
    sent = {"model": model, "messages": messages, "tools": [{**TOOL, "defer_loading": True}]}
    answer = http.post(PATH, json={**sent, "max_tokens": 999})
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"][-1]["input"] == {"a": 1}


def test_thoughts_of_earlier_turns_are_kept_as_asked() -> None:
    answers = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": word}]}
        for word in ("one", "two", "three")
    ]
    messages = [message for answer in answers for message in (answer, *HI)]
    for turns, words in ((1, ["three"]), (2, ["two", "three"])):
        keep = {"type": "thinking_turns", "value": turns}
        given = {"edits": [{"type": CLEAR, "keep": keep}]}
        request = plain(read({"messages": messages, "context_management": given}).decoded.request)
        thoughts = [
            item["content"][0]["text"]
            for item in request["input"]
            if "content" in item and item["type"] == "reasoning"
        ]
        assert thoughts == words
        assert ("reasoning" in request) is (turns > 1)
