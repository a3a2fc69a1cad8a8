"""What a chat request means: each field has the effect of its sister in Responses, is named as
ignored, or is refused under the name that the client gave it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import httpx
import msgspec
import pytest
from tests.http.conftest import ROOT, script

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import decode_request
from antiphon.domain.requests.request import CreateResponse, SharedFields
from antiphon.entrypoints.http.doors.chat.reading import read_chat
from antiphon.entrypoints.http.doors.chat.request import ChatRequest

Json = dict[str, Any]

PATH = "/chat/completions"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
F = {"name": "f", "description": "d", "parameters": SCHEMA}
TOOL = {"type": "function", "function": F}
ODD = {"name": "g", "parameters": {"type": 1}}
FLAT = {"type": "function", "strict": False, **F}
FORMAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}
LOGPROBS = ["message.output_text.logprobs"]


def read(body: Json) -> Any:
    return read_chat(msgspec.json.encode({"model": "m", "messages": HI, **body}), strict=False)


def as_response(**body: Any) -> CreateResponse:
    """Return the request to Responses with these fields, with decoded lists."""
    return plain(
        decode_request(msgspec.json.encode({"model": "m", "store": False, **body})).request
    )


def plain(request: CreateResponse) -> Any:
    """Return a request as JSON values, without what is absent."""
    fields = msgspec.json.decode(msgspec.json.encode(request))
    return without_nulls(fields)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


# --- fields ---------------------------------------------------------------------------------------

NAMED: Mapping[str, tuple[Any, Json]] = {
    "max_tokens": (1, {"max_output_tokens": 1}),
    "max_completion_tokens": (5, {"max_output_tokens": 5}),
    "reasoning_effort": ("low", {"reasoning": {"effort": "low"}}),
    "verbosity": ("high", {"text": {"verbosity": "high"}}),
    "logprobs": (True, {"include": LOGPROBS}),
    "tools": ([TOOL], {"tools": [FLAT]}),
    "functions": ([F], {"tools": [FLAT], "parallel_tool_calls": False}),
    "function_call": ({"name": "f"}, {"tool_choice": {"type": "function", "name": "f"}}),
    "tool_choice": ("required", {"tool_choice": "required"}),
    "response_format": (
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        {"text": {"format": FORMAT}},
    ),
    "web_search_options": (
        {
            "search_context_size": "low",
            "user_location": {"type": "approximate", "approximate": {"city": "Bonn"}},
        },
        {
            "tools": [
                {
                    "type": "web_search",
                    "search_context_size": "low",
                    "user_location": {"type": "approximate", "city": "Bonn"},
                }
            ]
        },
    ),
    "stream_options": ({"include_usage": True}, {}),
    "n": (1, {}),
    "modalities": (["text"], {}),
    "prediction": ({"type": "content", "content": "x"}, {}),
}
"""A field, a value, and what asks for the same in Responses."""

OTHERWISE_TESTED = {"messages", "top_logprobs", "audio"}

SAME: Json = {
    "model": "other",
    "store": True,
    "stream": True,
    "parallel_tool_calls": False,
    "temperature": 0.5,
    "top_p": 0.5,
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "user": "u",
    "moderation": {"model": "m"},
    "request_id": "r",
    "session_id": "s",
    "priority": 3,
    "cache_salt": "s",
    "include_reasoning": False,
    "top_k": 4,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "seed": 7,
    "stop": ["a", "b"],
    "stop_token_ids": [1],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "logit_bias": {"5": -100},
    "structured_outputs": {"regex": "a+"},
    "chat_template_kwargs": {"enable_thinking": False},
    "mm_processor_kwargs": {"a": 1},
    "media_io_kwargs": {"a": 1},
    "kv_transfer_params": {"a": 1},
    "ec_transfer_params": {"a": 1},
    "vllm_xargs": {"a": 1},
    "watermarking": True,
}


def test_each_field_is_accounted_for() -> None:
    own = set(ChatRequest.__struct_fields__) - set(SharedFields.__struct_fields__)
    assert own == NAMED.keys() | OTHERWISE_TESTED
    assert SAME.keys() == set(SharedFields.__struct_fields__)


@pytest.mark.parametrize("name", NAMED)
def test_a_field_asks_for_what_its_sister_asks_for(name: str) -> None:
    value, sister = NAMED[name]
    assert plain(read({name: value}).decoded.request) == as_response(
        **{"input": [{"type": "message", **HI[0]}], **sister}
    )


@pytest.mark.parametrize("name", SAME)
def test_a_field_that_both_have_is_the_same(name: str) -> None:
    assert plain(read({name: SAME[name]}).decoded.request)[name] == SAME[name]


@pytest.mark.parametrize(
    ("choice", "flat"),
    [
        ({"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "f"}),
        ({"type": "custom", "custom": {"name": "f"}}, {"type": "custom", "name": "f"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
        ),
        ({"type": "web_search"}, {"type": "web_search"}),
        ("none", "none"),
    ],
)
def test_a_choice_of_tools_is_the_same_choice(choice: Any, flat: Any) -> None:
    assert read({"tool_choice": choice}).decoded.request.tool_choice == flat


def test_a_grammar_of_a_custom_tool_is_the_same_grammar() -> None:
    grammar = {"syntax": "regex", "definition": "a+"}
    custom = {"name": "c", "format": {"type": "grammar", "grammar": grammar}}
    [tool] = plain(read({"tools": [{"type": "custom", "custom": custom}]}).decoded.request)["tools"]
    assert tool == {"type": "custom", "name": "c", "format": {"type": "grammar", **grammar}}


def test_a_request_can_be_started_by_another_server() -> None:
    incoming = read({**{name: value for name, (value, _) in NAMED.items()}, "seed": 3})
    assert plain(decode_request(incoming.job_body()).request) == plain(incoming.decoded.request)


# --- messages -------------------------------------------------------------------------------------

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TEXT = {"type": "text", "text": "t"}

MESSAGES: Mapping[str, tuple[list[Json], list[Json]]] = {
    "system": ([{"role": "system", "content": "s"}], [{"role": "system", "content": "s"}]),
    "parts": (
        [
            {
                "role": "user",
                "content": [
                    TEXT,
                    {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
                    {"type": "image_url", "image_url": "https://a.example/b.png"},
                    {"type": "file", "file": {"file_data": "data:;base64,QQ==", "filename": "a"}},
                    {"type": "file", "file": {"file_id": "file-1"}},
                    {"type": "input_text", "text": "u"},
                ],
            }
        ],
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "t"},
                    *[
                        {
                            "type": "input_image",
                            "image_url": "https://a.example/b.png",
                            "detail": "auto",
                        }
                    ]
                    * 2,
                    {"type": "input_file", "file_data": "data:;base64,QQ==", "filename": "a"},
                    {"type": "input_file", "file_id": "file-1"},
                    {"type": "input_text", "text": "u"},
                ],
            }
        ],
    ),
    "calls": (
        [
            {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}]},
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": [TEXT]},
        ],
        [
            CALLED,
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_text", "text": "t"}],
            },
        ],
    ),
    "thoughts": (
        [{"role": "assistant", "content": "a", "reasoning_content": "r", "reasoning": "r"}],
        [
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "r"}],
            },
            {"role": "assistant", "content": "a", "phase": "final_answer"},
        ],
    ),
    "a text before calls": (
        [{"role": "assistant", "content": "a", "tool_calls": [CALL]}],
        [{"role": "assistant", "content": "a", "phase": "commentary"}, CALLED],
    ),
    "two texts": (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
        [
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": "b", "phase": "final_answer"},
        ],
    ),
    "a refusal": (
        [{"role": "assistant", "content": "", "refusal": "no", "annotations": [], "audio": None}],
        [
            {
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "no"}],
                "phase": "final_answer",
            }
        ],
    ),
    "nothing": ([{"role": "assistant", "content": None}, *HI], HI),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_items(name: str) -> None:
    messages, items = MESSAGES[name]
    incoming = read({"messages": messages})
    expected = [{"type": "message", **item} if "role" in item else item for item in items]
    assert plain(incoming.decoded.request)["input"] == expected
    assert incoming.decoded.ignored == ()


# --- what has no effect, and what is refused ------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"foo": 1}, "foo"),
        ({"messages": [{"role": "user", "content": "hi", "name": "Ann"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "hi", "mood": 1}]}, "messages[0].mood"),
        ({"tools": [{**TOOL, "function": {**F, "async": True}}]}, "tools[0].function.async"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"tools": [{"type": "image_generation"}]}, "tools[0]"),
        ({"tools": [TOOL], "web_search_options": {}}, "web_search_options"),
    ],
)
def test_a_field_without_effect_is_named(http: httpx.Client, body: Json, named: str) -> None:
    answer = http.post(PATH, json={"model": "scripted", "messages": HI, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-antiphon-ignored"].startswith(named)


OPEN_CALL = [*HI, {"role": "assistant", "tool_calls": [CALL]}]

REFUSED: list[tuple[Json, str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "clown", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [*HI, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [TEXT, {"type": "image_url"}]}]},
        "messages[0].content[1].image_url",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [TEXT, {"type": "image_url", "image_url": {"url": "data:x"}}],
                }
            ]
        },
        "messages[0].content[1].image_url",
    ),
    ({"messages": [*HI, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    (
        {"messages": [*OPEN_CALL, {"role": "tool", "tool_call_id": "d", "content": "x"}]},
        "messages[2].tool_call_id",
    ),
    ({"messages": OPEN_CALL}, "messages"),
    (
        {"messages": [*HI, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}]},
        "messages[1].tool_calls[0].function",
    ),
    ({"messages": [*HI, {"role": "function", "name": "f"}]}, "messages[1].name"),
    ({"model": "nobody"}, "model"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"tools": [{"function": F}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (
        {
            "tools": [
                TOOL,
                {"type": "function", "function": {"name": "g", "parameters": {"type": 1}}},
            ]
        },
        "tools[1].function.parameters",
    ),
    ({"functions": [ODD]}, "functions[0].parameters"),
    ({"tools": [{"type": "apply_patch"}]}, "tools[0].type"),
    (
        {"tools": [{"type": "mcp", "server_label": "s", "server_url": "https://a.example"}]},
        "tools[0].require_approval",
    ),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
    ({"function_call": {"name": "x"}}, "function_call"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema.schema",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "array"}, "strict": True},
            }
        },
        "response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
def test_a_wrong_field_is_named_as_the_client_calls_it(
    http: httpx.Client, body: Json, param: str
) -> None:
    answer = http.post(PATH, json={"model": "scripted", "messages": HI, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert "'input[" not in error["message"]


def test_a_strict_server_refuses_what_has_no_effect(serve: Callable[..., Any]) -> None:
    with serve(strict=True) as server, httpx.Client(base_url=server.api) as http:
        for body, param in (
            ({"mood": 1}, "mood"),
            ({"prediction": {"type": "content"}}, "prediction"),
            ({"tools": [{"type": "image_generation"}]}, "tools[0]"),
        ):
            answer = http.post(PATH, json={"model": "scripted", "messages": HI, **body})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param
        accepted = {"modalities": ["text"], "n": 1, "stream_options": None, "audio": None}
        answer = http.post(PATH, json={"model": "scripted", "messages": HI, **accepted})
        assert answer.status_code == 200, answer.text


def test_what_cannot_be_read_is_refused_before_anything_runs() -> None:
    for body in (b"", b"[]", b'{"messages": [1]}', b'{"messages": [{"role": "user"}]}'):
        with pytest.raises(RequestError):
            read_chat(body, strict=False)


# --- keys -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., httpx.Client]]:
    """A server that asks for keys; call it for the client of a new key with a policy."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys.toml"
    file.touch()
    with serve_from(folder, auth="on", keys_file=file) as server:

        def client(tenant: str = "t", **policy: Any) -> httpx.Client:
            key, kept = create_key("ci", tenant, new_id=new_id, now=lambda: 0)
            append(file, msgspec.structs.replace(kept, policy=KeyPolicy(**policy)))
            headers = {"authorization": f"Bearer {key}"}
            return httpx.Client(base_url=server.api, headers=headers, timeout=30)

        yield client


BODY = {"model": "scripted-chat", "messages": HI}


def test_a_key_is_needed_if_the_server_asks_for_one(guarded: Callable[..., httpx.Client]) -> None:
    with guarded() as client:
        assert client.post(PATH, json=BODY).status_code == 200
        answer = client.post(PATH, json=BODY, headers={"authorization": "Bearer wrong"})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
    with guarded(scopes=("read",)) as reader:
        assert reader.post(PATH, json=BODY).status_code == 403


def test_a_key_has_its_rights_here_too(guarded: Callable[..., httpx.Client]) -> None:
    with guarded(models=("scripted-harmony",)) as client:
        error = client.post(PATH, json=BODY).json()["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")
    with guarded(tools=("function",)) as client:
        tools = [{"type": "web_search"}]
        answer = client.post(PATH, json={**BODY, "tools": tools})
        assert answer.status_code == 403
        assert answer.json()["error"]["param"] == "tools[0]"


def test_a_limit_counts_the_requests_of_all_doors(guarded: Callable[..., httpx.Client]) -> None:
    with guarded(limits={"requests/min": 2}) as client:
        first = client.post(PATH, json=BODY)
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        asked = {"model": "scripted-chat", "input": "hi", "store": False}
        assert client.post("/responses", json=asked).status_code == 200
        answer = client.post(PATH, json=BODY)
        assert answer.status_code == 429
        assert answer.json()["error"]["type"] == "rate_limit_error"


def test_a_completion_that_is_kept_is_its_tenants(guarded: Callable[..., httpx.Client]) -> None:
    with guarded("ours") as ours, guarded("theirs") as theirs:
        kept = ours.post(PATH, json={**BODY, "store": True}).json()["id"]
        path = f"/responses/{kept.replace('chatcmpl-', 'resp_')}"
        assert ours.get(path).status_code == 200
        assert theirs.get(path).status_code == 404


# --- on the wire ----------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["auto", "event"])
def test_a_silent_stream_shows_signs_of_life_as_comments(
    serve: Callable[..., Any], style: str
) -> None:
    with (
        serve(keepalive=style, keepalive_s=0.2) as server,
        httpx.Client(base_url=server.api, headers={"user-agent": "codex_cli_rs/1"}) as http,
    ):
        messages = [{"role": "user", "content": script({"say": "x", "delay": 1})}]
        asked = {"model": "scripted", "messages": messages, "stream": True}
        text = http.post(PATH, json=asked).text
    assert ": keepalive\n" in text
    assert "event:" not in text


def test_the_door_is_counted_by_its_route(serve: Callable[..., Any]) -> None:
    with serve(metrics=True) as server, httpx.Client(base_url=server.url) as http:
        http.post(f"/v1{PATH}", json={"model": "scripted", "messages": HI})
        assert 'route="/v1/chat/completions"' in http.get("/metrics").text


def test_errors_are_of_openai_whatever_the_dialect(serve: Callable[..., Any]) -> None:
    with serve(dialect="open-responses") as server, httpx.Client(base_url=server.api) as http:
        answer = http.post(PATH, json={"model": "nobody", "messages": HI})
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_guide_says_what_each_field_does() -> None:
    guide = (ROOT / "docs/guides/chat_completions.md").read_text(encoding="utf-8")
    table = guide.partition("## Fields")[2]
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.+?) \|", table, re.MULTILINE))))
    assert named == set(ChatRequest.__struct_fields__)
