"""Every field of a request is accounted for: it changes the answer, the stream or the turn of the
model, is refused by name, or is listed as without effect. Nothing is silently ignored.
"""

from __future__ import annotations

import asyncio
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Struct

from antiphon.application.input.submission import Submission
from antiphon.application.ports import Turn
from antiphon.domain.access.callers import ANYBODY
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import decode_request
from antiphon.domain.requests.request import IGNORED_FIELDS, CreateResponse

Json = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"text.format.type": "json_schema", "text.format.name": "n", "text.format.schema": SCHEMA}
PATTERN = {"structured_outputs.regex": "a+"}
THOUGHT = '@@script [[{"think": "one two"}, {"say": "three four"}]]'
LONG = [
    {"role": "user", "content": "word " * 1500},
    {"role": "assistant", "content": "Read."},
    {"role": "user", "content": "Go on."},
]
USES = [
    {"role": "user", "content": "hi"},
    *(
        {"call_id": f"c{number}", **item}
        for number in range(5)
        for item in (
            {"type": "function_call", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "output": "word " * 50},
        )
    ),
]
CLEAR = {
    "input": USES,
    "context_management.type": "clear_tool_uses_20250919",
    "context_management.trigger": {"type": "tool_uses", "value": 0},
}
RAW = {"input": None, "store": False}
TOOL = {"type": "function", "name": "f"}

SAMPLES: Mapping[str, tuple[Any, Json]] = {
    "model": ("scripted", {}),
    "input": ("something else", {}),
    "instructions": ("Be brief.", {}),
    "previous_response_id": ("resp_none", {}),
    "conversation.id": ("conv_none", {}),
    "store": (False, {}),
    "background": (True, {}),
    "stream": (True, {}),
    "stream_options.include_obfuscation": (True, {"stream": True}),
    "stream_options.continuous_usage_stats": (True, {"stream": True}),
    "generate": (False, {}),
    "include": (["message.output_text.logprobs"], {}),
    "max_output_tokens": (16, {}),
    "max_tool_calls": (3, {}),
    "multi_agent.enabled": (True, {}),
    "multi_agent.max_concurrent_subagents": (2, {"multi_agent.enabled": True}),
    "parallel_tool_calls": (False, {}),
    "tools": ([TOOL], {}),
    "tool_choice": ("none", {"tools": [TOOL]}),
    "temperature": (0.5, {}),
    "top_p": (0.5, {}),
    "top_logprobs": (2, {}),
    "text.format.type": ("json_object", {}),
    "text.format.name": ("other", NAMED),
    "text.format.description": ("What it is.", NAMED),
    "text.format.schema": ({"type": "object", "properties": {}}, NAMED),
    "text.format.strict": (True, NAMED),
    "text.verbosity": ("low", {}),
    "reasoning.effort": ("high", {}),
    "reasoning.summary": ("auto", {}),
    "reasoning.generate_summary": ("auto", {}),
    "reasoning.context": ("all_turns", {}),
    "reasoning.mode": ("pro", {}),
    "truncation": ("auto", {}),
    "context_management.type": (
        "compaction",
        {"context_management.compact_threshold": 1000, "input": LONG},
    ),
    "context_management.compact_threshold": (
        1000,
        {"context_management.type": "compaction", "input": LONG},
    ),
    "context_management.trigger.type": (
        "input_tokens",
        {
            "context_management.type": "clear_tool_uses_20250919",
            "context_management.trigger.value": 50,
            "input": USES,
        },
    ),
    "context_management.trigger.value": (
        3,
        {
            "context_management.type": "clear_tool_uses_20250919",
            "context_management.trigger.type": "tool_uses",
            "input": USES,
        },
    ),
    "context_management.keep.type": ("tool_uses", CLEAR | {"context_management.keep.value": 1}),
    "context_management.keep.value": (1, CLEAR | {"context_management.keep.type": "tool_uses"}),
    "context_management.clear_at_least.type": (
        "input_tokens",
        CLEAR | {"context_management.clear_at_least.value": 1},
    ),
    "context_management.clear_at_least.value": (
        9_000,
        CLEAR | {"context_management.clear_at_least.type": "input_tokens"},
    ),
    "context_management.exclude_tools": (["f"], CLEAR),
    "context_management.clear_tool_inputs": (True, CLEAR),
    "metadata": ({"a": "b"}, {}),
    "service_tier": ("scale", {}),
    "prompt_cache_key": ("k", {}),
    "prompt_cache_options.mode": ("explicit", {}),
    "prompt_cache_options.ttl": ("12h", {}),
    "prompt_cache_options.prewarm": (True, {}),
    "prompt_cache_options.comparison_response_id": ("resp_1", {}),
    "prompt_cache_retention": ("24h", {}),
    "safety_identifier": ("s", {}),
    "user": ("u", {}),
    "prompt.id": ("pmpt_1", {}),
    "prompt.version": ("1", {"prompt.id": "pmpt_1"}),
    "prompt.variables": ({"a": "b"}, {"prompt.id": "pmpt_1"}),
    "moderation.model": ("m", {}),
    "moderation.policy.input.mode": ("block", {"moderation.model": "m"}),
    "moderation.policy.output.mode": ("score", {"moderation.model": "m"}),
    "access_programs": ({"cyber": "standard"}, {}),
    "image": ({"context_compression": "enabled"}, {}),
    "request_id": ("mine", {}),
    "session_id": ("s", {}),
    "priority": (1, {}),
    "cache_salt": ("salt", {}),
    "enable_response_messages": (True, {}),
    "previous_input_messages": ([{"role": "user", "content": "before"}], {}),
    "raw_prompt.text": ("a", RAW),
    "raw_prompt.tokens": ([68], RAW),
    "raw_prompt.echo": (True, {**RAW, "raw_prompt.text": "a"}),
    "raw_prompt.echo_only": (True, {**RAW, "raw_prompt.text": "a", "raw_prompt.echo": True}),
    "include_reasoning": (False, {}),
    "top_k": (3, {}),
    "min_p": (0.1, {}),
    "repetition_penalty": (1.1, {}),
    "presence_penalty": (0.1, {}),
    "frequency_penalty": (0.1, {}),
    "seed": (1, {}),
    "stop": ("four", {}),
    "stop_token_ids": ([5], {}),
    "include_stop_str_in_output": (True, {"stop": "four"}),
    "ignore_eos": (True, {}),
    "skip_special_tokens": (False, {}),
    "logit_bias": ({"5": 1.0}, {}),
    "structured_outputs.json": (SCHEMA, {}),
    "structured_outputs.regex": ("a+", {}),
    "structured_outputs.choice": (["a"], {}),
    "structured_outputs.grammar": ('start: "a"', {}),
    "structured_outputs.json_object": (True, {}),
    "structured_outputs.structural_tag": ({"type": "structural_tag"}, {}),
    "structured_outputs.disable_any_whitespace": (True, PATTERN),
    "structured_outputs.disable_additional_properties": (True, PATTERN),
    "structured_outputs.whitespace_pattern": (" ?", PATTERN),
    "chat_template_kwargs": ({"a": 1}, {}),
    "mm_processor_kwargs": ({"a": 1}, {}),
    "media_io_kwargs": ({"a": 1}, {}),
    "kv_transfer_params": ({"a": 1}, {}),
    "ec_transfer_params": ({"a": 1}, {}),
    "vllm_xargs": ({"a": 1}, {}),
    "watermarking": (True, {}),
}
"""A value of each field that asks for something, and the other fields that it needs beside it."""

LISTS = ("context_management",)
"""Fields that are lists of such objects as the paths here speak of."""

PASSING = ("id", "created_at", "completed_at", "item_id", "encrypted_content", "cached_tokens")
"""What differs between two answers to the same request."""


def paths(struct: Any = CreateResponse, prefix: str = "") -> Iterator[str]:
    """Return all fields, and those of the structs in them."""
    for field in msgspec.structs.fields(struct):
        inner = list(_structs(field.type))
        if not inner:
            yield prefix + field.encode_name
        for each in inner:
            tag = each.__struct_config__.tag_field
            yield from [f"{prefix}{field.encode_name}.{tag}"] if tag else []
            yield from paths(each, f"{prefix}{field.encode_name}.")


def _structs(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
    for each in typing.get_args(kind):
        yield from _structs(each)


def body(fields: Json) -> Json:
    """Return a request with these fields, each given by its path."""
    whole: Json = {}
    for path, value in ({"model": "scripted-chat", "input": THOUGHT} | fields).items():
        place = whole
        *outer, name = path.split(".")
        for each in outer:
            place = place.setdefault(each, {})
        place[name] = value
    return {name: [value] if name in LISTS else value for name, value in whole.items()}


def told(answer: httpx.Response) -> str:
    """Return what the client was answered, without what differs every time."""
    kind = answer.headers["content-type"]
    if kind == "application/json":
        return json.dumps(_lasting(answer.json()))
    frames = answer.text.split("\n\n")[:-1]
    return kind + json.dumps([_shape(json.loads(frame.split("data: ")[1])) for frame in frames])


def _shape(event: Json) -> Any:
    return [_lasting(event), sorted(event)]


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if k not in PASSING}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def turn(server: Any, asked: Json) -> Turn:
    request = decode_request(json.dumps(asked).encode()).request
    submission = Submission(caller=ANYBODY, request=request)
    prepared = asyncio.run(server.app.runs.prepare_turn(submission))
    result: Turn = prepared.turn
    return result


def test_every_field_has_a_sample_here() -> None:
    assert set(paths()) == set(SAMPLES)


@pytest.mark.parametrize("path", sorted(SAMPLES))
def test_a_field_is_honoured_refused_by_name_or_listed(
    http: httpx.Client, server: Any, path: str
) -> None:
    value, beside = SAMPLES[path]
    without, with_it = body(beside), body(beside | {path: value})
    answer = http.post("/responses", json=with_it)
    if answer.status_code != 200:
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["param"] == path.partition(".")[0]
        return
    listed = answer.headers.get("x-antiphon-ignored", "").split(", ")
    for ignored in (path, path.partition(".")[0]):
        if ignored in IGNORED_FIELDS:
            assert ignored in listed
            return
    assert path not in listed
    plain = http.post("/responses", json=without)
    assert told(answer) != told(plain) or turn(server, with_it) != turn(server, without)


@pytest.mark.parametrize("path", sorted(IGNORED_FIELDS))
def test_a_field_that_asks_for_what_is_done_anyway_is_not_listed(
    http: httpx.Client, path: str
) -> None:
    for harmless in (None, *IGNORED_FIELDS[path]):
        beside = SAMPLES.get(path, ({}, {}))[1]
        answer = http.post("/responses", json=body(beside | {path: harmless}))
        assert path not in answer.headers.get("x-antiphon-ignored", "")


@pytest.mark.parametrize(
    ("asked", "echoed"),
    [
        (None, "default"),
        ("auto", "default"),
        ("flex", "flex"),
        ("fast", "priority"),
        ("scale", "default"),
    ],
)
def test_the_response_names_the_service_tier_that_was_used(
    http: httpx.Client, asked: str | None, echoed: str
) -> None:
    answer = http.post("/responses", json=body({"service_tier": asked}))
    assert answer.json()["service_tier"] == echoed


def test_verbosity_becomes_an_instruction_to_the_model(http: httpx.Client, model: str) -> None:
    seen = {}
    for verbosity in (None, "medium", "low", "high"):
        asked = body({"model": model, "text.verbosity": verbosity, "instructions": "Be kind."})
        answer = http.post("/responses", json=asked | {"enable_response_messages": True}).json()
        seen[verbosity] = str(answer["input_messages"])
        assert answer["instructions"] == "Be kind."
        assert answer["text"]["verbosity"] == (verbosity or "medium")
    assert seen[None] == seen["medium"]
    assert "Keep your answer short" in seen["low"]
    assert "Answer in detail" in seen["high"]


@pytest.mark.parametrize(("name", "right"), [("messages", "input"), ("max_tokens", "max_output_")])
def test_a_field_of_chat_completions_is_refused_with_the_right_name(
    http: httpx.Client, name: str, right: str
) -> None:
    refused = http.post("/responses", json=body({name: 1}))
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert right in error["message"]


def test_a_sample_that_could_not_fail_would_be_found_out(server: Any) -> None:
    same = body({"temperature": 0.5})
    assert turn(server, same) == turn(server, same)
    with pytest.raises(RequestError):
        turn(server, body({"text.verbosity": "loud"}))
