"""What a request of the Messages API means: each field has the effect of its sister in Responses,
is named as ignored, or is refused under the name that the client gave it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest
from tests.http.conftest import ROOT
from tests.http.doors.test_chat_requests import SAME, as_response, plain

from antiphon.application.model.models import Models
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import decode_request
from antiphon.domain.requests.request import SharedFields
from antiphon.entrypoints.http.doors.messages.reading import read_counted, read_messages
from antiphon.entrypoints.http.doors.messages.request import MessagesRequest

Json = dict[str, Any]

PATH = "/messages"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"name": "f", "description": "d", "input_schema": SCHEMA}
FLAT = {
    "type": "function",
    "strict": False,
    "name": "f",
    "description": "d",
    "parameters": SCHEMA,
}
FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
SENT_FORMAT = {"type": "json_schema", "schema": SCHEMA}
CLEAR = "clear_thinking_20251015"
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "c"}
TEXT = {"type": "text", "text": "t"}
SEALED = ["reasoning.encrypted_content"]

read_messages = partial(read_messages, models=Models([]))


def read(body: Json) -> Any:
    sent = {"model": "m", "messages": HI, "max_tokens": 9, **body}
    return read_messages(msgspec.json.encode(sent), strict=False)


def same(**fields: Any) -> Any:
    return as_response(**{"include": SEALED, "max_output_tokens": 9, **fields})


# --- fields ---------------------------------------------------------------------------------------

MCP = {"type": "url", "url": "https://a.example/mcp", "name": "n", "authorization_token": "t"}
AS_MCP = {
    "type": "mcp",
    "server_label": "n",
    "server_url": "https://a.example/mcp",
    "authorization": "t",
    "require_approval": "never",
}

NAMED: Mapping[str, list[tuple[Any, Json]]] = {
    "max_tokens": [(1, {"max_output_tokens": 1})],
    "system": [
        ("s", {"instructions": "s"}),
        (
            [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=1;"},
                {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "t"},
            ],
            {"instructions": "s\n\nt"},
        ),
    ],
    "tools": [
        ([TOOL], {"tools": [FLAT]}),
        ([{**TOOL, "type": "custom", "strict": True}], {"tools": [{**FLAT, "strict": True}]}),
        (
            [TOOL, {**TOOL, "name": "g", "defer_loading": False}],
            {"tools": [FLAT, {**FLAT, "name": "g"}]},
        ),
        (
            [
                {
                    "type": "web_search_20250305",
                    "name": "web_search",
                    "allowed_domains": ["a.example"],
                }
            ],
            {
                "tools": [
                    {
                        "type": "web_search",
                        "search_context_size": "medium",
                        "filters": {"allowed_domains": ["a.example"]},
                    }
                ]
            },
        ),
        (
            [{"type": "code_execution_20250825", "name": "code_execution"}],
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
        ),
        ([{"type": "web_search"}], {"tools": [{"type": "web_search"}]}),
    ],
    "tool_choice": [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "name": "f"}}),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
    "mcp_servers": [
        ([MCP], {"tools": [AS_MCP]}),
        (
            [{**MCP, "tool_configuration": {"enabled": True, "allowed_tools": ["a"]}}],
            {"tools": [{**AS_MCP, "allowed_tools": ["a"]}]},
        ),
        ([{**MCP, "tool_configuration": {"enabled": False}}], {}),
    ],
    "thinking": [
        ({"type": "adaptive"}, {}),
        ({"type": "between_tools"}, {}),
        ({"type": "disabled"}, {"reasoning": {"effort": "none"}}),
        ({"type": "enabled", "budget_tokens": 1024}, {"reasoning": {"effort": "low"}}),
        ({"type": "enabled", "budget_tokens": 10000}, {"reasoning": {"effort": "medium"}}),
        ({"type": "enabled", "budget_tokens": 31999}, {"reasoning": {"effort": "high"}}),
    ],
    "output_config": [
        ({"effort": "max"}, {"reasoning": {"effort": "max"}}),
        ({"format": SENT_FORMAT}, {"text": {"format": FORMAT}}),
    ],
    "output_format": [(SENT_FORMAT, {"text": {"format": FORMAT}})],
    "context_management": [
        ({"edits": [{"type": CLEAR, "keep": "all"}]}, {"reasoning": {"context": "all_turns"}}),
        ({"edits": [{"type": CLEAR}]}, {}),
        ({"edits": []}, {}),
    ],
    "stop_sequences": [(["a", "b"], {"stop": ["a", "b"]}), ([], {})],
    "metadata": [({"user_id": "ann"}, {"user": "ann"}), ({"user_id": None}, {})],
    "service_tier": [
        ("auto", {"service_tier": "auto"}),
        ("standard_only", {"service_tier": "default"}),
    ],
    "cache_control": [({"type": "ephemeral"}, {})],
}
"""A field, its values, and what asks for the same in Responses."""

OTHERWISE_TESTED = {"messages", "thread"}

ANOTHER_TYPE = {"metadata", "service_tier"}
"""Fields that Responses has, too."""


def test_each_field_is_accounted_for() -> None:
    own = set(MessagesRequest.__struct_fields__) - set(SharedFields.__struct_fields__)
    assert own | ANOTHER_TYPE == NAMED.keys() | OTHERWISE_TESTED


@pytest.mark.parametrize(
    ("name", "number"), [(name, each) for name in NAMED for each in range(len(NAMED[name]))]
)
def test_a_field_asks_for_what_its_sister_asks_for(name: str, number: int) -> None:
    value, sister = NAMED[name][number]
    incoming = read({name: value})
    assert plain(incoming.decoded.request) == same(
        **{"input": [{"type": "message", **HI[0]}], **sister}
    )
    assert incoming.decoded.ignored == ()


@pytest.mark.parametrize("name", [name for name in SAME if name not in ANOTHER_TYPE])
def test_a_field_that_both_have_is_the_same(name: str) -> None:
    assert plain(read({name: SAME[name]}).decoded.request)[name] == SAME[name]


def test_a_toolset_says_which_tools_of_its_server_there_are() -> None:
    toolset = {"type": "mcp_toolset", "mcp_server_name": "n"}
    some = {"default_config": {"enabled": False}, "configs": {"a": {"enabled": True}}}
    for given, tool in (
        (toolset, AS_MCP),
        ({**toolset, **some}, {**AS_MCP, "allowed_tools": ["a"]}),
    ):
        found = plain(read({"tools": [given], "mcp_servers": [MCP]}).decoded.request)["tools"]
        assert found == [tool]


def test_a_tool_of_the_server_is_chosen_by_its_name_here() -> None:
    search = {"type": "web_search_20260209", "name": "web_search"}
    choice = {"type": "tool", "name": "web_search"}
    request = read({"tools": [search], "tool_choice": choice}).decoded.request
    assert request.tool_choice == {"type": "web_search"}
    own = read({"tools": [{**TOOL, "name": "web_search"}], "tool_choice": choice}).decoded.request
    assert own.tool_choice == {"type": "function", "name": "web_search"}


def test_a_request_can_be_started_by_another_server() -> None:
    incoming = read(
        {
            **{name: values[0][0] for name, values in NAMED.items() if name != "output_format"},
            "seed": 3,
        }
    )
    assert plain(decode_request(incoming.job_body()).request) == plain(incoming.decoded.request)


# --- what has no effect, and what is refused ------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"foo": 1}, "foo"),
        ({"speed": "fast"}, "speed"),
        ({"messages": [{"role": "user", "content": "hi", "mood": 1}]}, "messages[0].mood"),
        (
            {"messages": [{"role": "user", "content": [{**TEXT, "a": 1}]}]},
            "messages[0].content[0].a",
        ),
        ({"tools": [{**TOOL, "async": True}]}, "tools[0].async"),
        ({"tools": [{"type": "image_generation"}]}, "tools[0]"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]},
            "tools[0]",
        ),
        ({"metadata": {"user_id": "a", "b": "c"}}, "metadata.b"),
        ({"service_tier": "scale"}, "service_tier"),
    ],
)
def test_a_field_without_effect_is_named(http: httpx.Client, body: Json, named: str) -> None:
    sent = {"model": "scripted", "messages": HI, "max_tokens": 99, **body}
    answer = http.post(PATH, json=sent)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-antiphon-ignored"].startswith(named)


OPEN_CALL = [*HI, {"role": "assistant", "content": [USE]}]
IMAGE = {"type": "image", "source": {"type": "url", "url": "data:x"}}

ODD = {"name": "g", "input_schema": {"type": 1}}


def addition(definition: Json) -> Json:
    tool = {"type": "tool_definition", "definition": definition}
    return {"type": "tool_addition", "tool": tool}


REFUSED: list[tuple[Json, str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": [{"role": "clown", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [*HI, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [TEXT, USE]}]}, "messages[0].content[1].type"),
    ({"messages": [{"role": "assistant", "content": [IMAGE]}, *HI]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "system", "content": [IMAGE]}, *HI]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [TEXT, {"type": "image"}]}]},
        "messages[0].content[1].source",
    ),
    (
        {"messages": [{"role": "user", "content": [{**TEXT, "text": ""}, TEXT, IMAGE]}]},
        "messages[0].content[2].source",
    ),
    (
        {"messages": [*OPEN_CALL, {"role": "user", "content": [{**RESULT, "tool_use_id": "d"}]}]},
        "messages[2].content[0].tool_use_id",
    ),
    (
        {
            "messages": [
                *OPEN_CALL,
                {"role": "user", "content": [TEXT, {**RESULT, "content": [TEXT, IMAGE]}]},
            ]
        },
        "messages[2].content[1].content[1].source",
    ),
    ({"messages": [*OPEN_CALL, *HI]}, "messages"),
    (
        {"messages": [*HI, {"role": "system", "content": [addition({"name": "g"})]}]},
        "messages[1].content[0].tool.definition.input_schema",
    ),
    (
        {
            "messages": [*HI, {"role": "system", "content": [addition(ODD)]}],
        },
        "messages[1].content[0].tool.definition",
    ),
    (
        {"messages": [*HI, {"role": "system", "content": [addition({"type": "bash_20250124"})]}]},
        "messages[1].content[0].tool.definition.type",
    ),
    ({"messages": [*HI, {"role": "assistant", "content": "I"}]}, "messages"),
    ({"messages": [{"role": "system", "content": "I"}]}, "messages"),
    ({"model": "nobody"}, "model"),
    ({"temperature": 3}, "temperature"),
    ({"top_k": -2}, "top_k"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"stop_sequences": ["a"], "stop": "b"}, "stop_sequences"),
    ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
    ({"thinking": {"type": "maybe"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name"),
    ({"tools": [TOOL, ODD]}, "tools[1].input_schema"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    ({"tools": [{"type": "apply_patch"}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools[0].name"),
    (
        {"tools": [{"type": "mcp", "server_label": "s", "server_url": "https://a.example"}]},
        "tools[0].require_approval",
    ),
    (
        {"tools": [{"type": "mcp_toolset", "mcp_server_name": "n"}]},
        "tools[0].mcp_server_name",
    ),
    (
        {
            "mcp_servers": [MCP],
            "tools": [
                {
                    "type": "mcp_toolset",
                    "mcp_server_name": "n",
                    "configs": {"a": {"enabled": False}},
                }
            ],
        },
        "tools[0].configs",
    ),
    ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": 1}}}},
        "output_config.format.schema",
    ),
    (
        {"output_format": {"type": "json_schema", "schema": {"type": 1}}},
        "output_format.schema",
    ),
    (
        {"output_format": SENT_FORMAT, "output_config": {"format": SENT_FORMAT}},
        "output_format",
    ),
    (
        {"context_management": {"edits": [{"type": "compact_20260112"}]}},
        "context_management.edits[0].type",
    ),
]


@pytest.mark.parametrize(("body", "place"), REFUSED)
def test_a_wrong_field_is_named_as_the_client_calls_it(
    http: httpx.Client, body: Json, place: str
) -> None:
    sent = {"model": "scripted", "messages": HI, "max_tokens": 99, **body}
    answer = http.post(PATH, json={name: each for name, each in sent.items() if each is not None})
    assert answer.status_code == 400, answer.text
    found = answer.json()
    assert found["type"] == "error"
    assert found["error"]["type"] == "invalid_request_error"
    assert found["error"].keys() == {"type", "message"}
    message = found["error"]["message"]
    assert f"'{place}'" in message or message.startswith(f"{place}: "), message
    assert "input[" not in message


def test_a_thread_is_refused_so_that_clients_send_all_messages(http: httpx.Client) -> None:
    sent = {"model": "scripted", "messages": HI, "max_tokens": 99, "thread": {"type": "create"}}
    error = http.post(PATH, json=sent).json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request"}


def test_a_strict_server_refuses_what_has_no_effect(serve: Callable[..., Any]) -> None:
    with serve(strict=True) as server, httpx.Client(base_url=server.api) as http:
        sent = {"model": "scripted", "messages": HI, "max_tokens": 99}
        for body in ({"mood": 1}, {"tools": [{**TOOL, "async": True}]}):
            answer = http.post(PATH, json={**sent, **body})
            assert answer.status_code == 400
        accepted = {
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": CLEAR, "keep": "all"}]},
            "output_config": {"effort": "high"},
            "metadata": {"user_id": "u"},
            "tools": [{**TOOL, "eager_input_streaming": True, "cache_control": {}}],
        }
        answer = http.post(PATH, json={**sent, **accepted})
        assert answer.status_code == 200, answer.text


def test_what_cannot_be_read_is_refused_before_anything_runs() -> None:
    for body in (b"", b"[]", b'{"messages": [1]}', b'{"messages": [{"role": "user"}]}'):
        with pytest.raises(RequestError):
            read_messages(body, strict=False)
        with pytest.raises(RequestError):
            read_counted(body, strict=False, models=Models([]))


def test_the_guide_says_what_each_field_does() -> None:
    guide = (ROOT / "docs/guides/messages.md").read_text(encoding="utf-8")
    table = guide.partition("## Fields")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.+?) \|", table, re.MULTILINE))))
    assert named == set(MessagesRequest.__struct_fields__)
