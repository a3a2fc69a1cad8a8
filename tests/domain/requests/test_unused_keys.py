"""Each key of a request that has no effect is named by its path, at any depth; what clients send
back of an answer is not."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai.types.responses as api
import pytest
from msgspec import Struct
from openai.types.responses import parsed_response

from antiphon.domain import content
from antiphon.domain.errors import RequestError
from antiphon.domain.history.tool_uses import ClearTrigger, KeptUses, LeastTokens
from antiphon.domain.items import ITEM_TYPES
from antiphon.domain.requests.decoding import DecodedRequest, decode_request, decode_request_body
from antiphon.domain.requests.request import CreateResponse, NewItems
from antiphon.domain.requests.unknown_keys import MAX_KEY_CHARS, MAX_NAMES
from antiphon.domain.tools import TOOL_TYPES
from antiphon.domain.vocabulary.item import type_of
from antiphon.entrypoints.http.wire.bodies import decode_body

Json = dict[str, Any]

GOLDEN = Path(__file__).parents[2] / "golden"
MADE_UP = "made_up"
ENTRIES = {"input": ITEM_TYPES, "tools": TOOL_TYPES}
"""What is in the lists whose entries are decoded later."""
REQUIRED: Json = {"schema": {}, "value": 1, "enabled": True, "mode": "score"}
LITERALS = {ClearTrigger: "input_tokens", KeptUses: "tool_uses", LeastTokens: "input_tokens"}


def decoded(**fields: Any) -> DecodedRequest[CreateResponse]:
    return decode_request(json.dumps({"model": "m", **fields}).encode())


def objects(kind: type[Struct]) -> Iterator[tuple[str, Json]]:
    """Yield the path of each object in one of this type, and one with a made-up key there."""
    config = kind.__struct_config__
    fields = msgspec.structs.fields(kind)
    plain = {each.encode_name: REQUIRED.get(each.name, "x") for each in fields if each.required}
    plain |= {"type": LITERALS[kind]} if kind in LITERALS else {}
    plain |= {config.tag_field: config.tag} if config.tag_field else {}
    yield "", {**plain, MADE_UP: 1}
    for field in fields:
        name = field.encode_name
        is_list = "tuple[" in str(field.type)
        inner = list(_structs(field.type))
        if kind in (CreateResponse, *WITH_TOOLS) and name in ENTRIES:
            inner, is_list = list(ENTRIES[name].values()), True
        for each in inner:
            for path, value in objects(each):
                yield (
                    f".{name}{'[0]' * is_list}{path}",
                    {**plain, name: [value] if is_list else value},
                )


WITH_TOOLS = (ITEM_TYPES["additional_tools"], ITEM_TYPES["tool_search_output"])


def _structs(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
    for each in typing.get_args(kind):
        yield from _structs(each)


PLACES = [(f"{path}.{MADE_UP}".removeprefix("."), body) for path, body in objects(CreateResponse)]


def test_there_are_places_of_all_depths() -> None:
    paths = {path for path, _ in PLACES}
    assert {
        "made_up",
        "reasoning.made_up",
        "text.format.made_up",
        "tools[0].made_up",
        "tools[0].tools[0].made_up",
        "input[0].made_up",
        "input[0].content[0].made_up",
        "input[0].output[0].made_up",
        "input[0].tools[0].tools[0].made_up",
        "context_management[0].made_up",
        "prompt.made_up",
    } <= paths
    assert len(PLACES) > 100


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("path", "body"), PLACES)
def test_a_key_that_nobody_knows_is_named_or_refused(path: str, body: Json, strict: bool) -> None:
    sent = json.dumps({"input": "Hi", **body}, indent=1).encode()
    if not strict:
        found = decode_body(sent, strict=False)
        assert (found.unknown, found.without_effect) == ((path,), ())
        return
    with pytest.raises(RequestError) as refusal:
        decode_body(sent, strict=True)
    assert (refusal.value.param, refusal.value.code) == (path, "unknown_parameter")


def test_an_easy_message_is_a_message() -> None:
    parts = [{"type": "input_text", "text": "a", "txt": 1}]
    found = decoded(input=[{"role": "user", "content": parts, "rle": "x"}, {"id": "msg_1"}])
    assert found.unknown == ("input[0].rle", "input[0].content[0].txt")


def test_items_of_conversations_are_walked_as_well() -> None:
    body = {"items": [{"role": "user", "content": "a", "rle": 1}]}
    found = decode_request_body(json.dumps(body).encode(), NewItems)
    assert found.unknown == ("items[0].rle",)


@pytest.mark.parametrize("kind", ["input_text", "input_image", "input_file"])
def test_a_breakpoint_of_the_cache_is_named_as_without_effect(kind: str) -> None:
    for value, expected in [({"mode": "explicit"}, True), (None, False)]:
        part = {"type": kind, "prompt_cache_breakpoint": value}
        found = decoded(input=[{"role": "user", "content": [part]}])
        paths = ("input[0].content[0].prompt_cache_breakpoint",) if expected else ()
        assert (found.unknown, found.without_effect) == ((), paths)


def test_what_may_have_any_keys_is_not_walked() -> None:
    anything = {MADE_UP: {MADE_UP: 1}, "type": "input_text"}
    function = {"type": "function", "name": "f", "parameters": anything, "output_schema": anything}
    mcp = {"type": "mcp", "server_label": "l", "headers": {MADE_UP: "1"}, "allowed_tools": anything}
    part = {"type": "output_text", "text": "", "annotations": [anything], "logprobs": [anything]}
    found = decoded(
        metadata={MADE_UP: "1"},
        logit_bias={MADE_UP: 1},
        prompt={"id": "p", "variables": anything},
        chat_template_kwargs=anything,
        tool_choice=anything,
        text={"format": {"type": "json_schema", "name": "n", "schema": anything}},
        tools=[function, mcp],
        input=[
            {"type": "message", "role": "assistant", "content": [part]},
            {"type": "shell_call", "action": anything, "caller": anything},
            {"type": "mcp_list_tools", "tools": [anything]},
        ],
    )
    assert found.ignored == ()


@pytest.mark.parametrize(
    "items", ["text", [5, "x", None, [], {}], [{"type": 5}], [{"type": "nope", "a": 1}], {"a": 1}]
)
def test_what_is_no_item_is_left_to_whoever_decodes_it(items: Any) -> None:
    body = json.dumps({"model": "m", "input": items}).encode()
    try:
        assert decode_request(body).ignored == ()
    except RequestError as refusal:
        assert refusal.param == "input"


def test_a_few_of_many_keys_are_named_and_the_others_counted() -> None:
    found = decoded(input=[{"role": "user", "content": "a", MADE_UP: 1}] * 10_000)
    assert found.unknown[:2] == ("input[0].made_up", "input[1].made_up")
    assert found.unknown[-1] == f"and {10_000 - MAX_NAMES} more"
    assert len(found.unknown) == MAX_NAMES + 1


def test_a_long_key_is_cut_and_one_of_control_characters_escaped() -> None:
    assert decoded(reasoning={"x" * 10_000: 1}).unknown == ("reasoning." + "x" * MAX_KEY_CHARS,)
    assert decoded(reasoning={"a\nb": 1}).unknown == ("reasoning.a\\nb",)


# --- what clients send back -----------------------------------------------------------------------


def _golden_items() -> Iterator[Json]:
    for path in sorted(GOLDEN.rglob("*.sse")):
        for line in path.read_text().splitlines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                yield from event.get("response", {}).get("output", ())


def test_items_that_this_server_made_have_no_unknown_key() -> None:
    items = list(_golden_items())
    assert {"message", "reasoning", "function_call", "mcp_call"} <= {each["type"] for each in items}
    for item in items:
        nulls = dict.fromkeys(ITEM_TYPES[item["type"]].__struct_encode_fields__)
        for sent in (item, nulls | item):
            assert decoded(input=[sent]).ignored == ()


PARTS = {
    type_of(kind): kind
    for kind in vars(content).values()
    if isinstance(kind, type) and issubclass(kind, content.Part) and kind is not content.Part
}


def _keys(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "model_fields"):
        return {each.alias or name: each.annotation for name, each in kind.model_fields.items()}
    return typing.get_type_hints(kind) if typing.is_typeddict(kind) else {}


def _api_types() -> dict[tuple[str, str], Any]:
    """Return all types of the API in items and tools that have a `type`, by name."""
    found: dict[tuple[str, str], Any] = {}
    roots = [api.ResponseInputItemParam, api.ToolParam, api.ResponseItem, api.Tool]
    roots += [api.ResponseOutputItem, parsed_response.ParsedResponseOutputItem]
    seen: set[int] = set()
    while roots:
        kind = roots.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        roots += typing.get_args(kind)
        keys = _keys(kind)
        roots += keys.values()
        tags = [each for each in _literals(keys.get("type")) if isinstance(each, str)]
        found |= {(tag, f"{kind.__module__}.{kind.__name__}"): keys for tag in tags}
    return found


def _literals(kind: Any) -> Iterator[Any]:
    if typing.get_origin(kind) is typing.Literal:
        yield from typing.get_args(kind)
    else:
        for each in typing.get_args(kind):
            yield from _literals(each)


API_TYPES = _api_types()


def test_the_tools_of_the_api_are_known_here() -> None:
    tools = {each for tool in typing.get_args(typing.get_args(api.Tool)[0]) for each in _tags(tool)}
    assert tools
    assert tools <= TOOL_TYPES.keys()


def _tags(kind: Any) -> list[Any]:
    return list(_literals(_keys(kind).get("type")))


@pytest.mark.parametrize(("tag", "name"), sorted(API_TYPES))
def test_a_key_of_the_api_is_known(tag: str, name: str) -> None:
    keys = API_TYPES[tag, name]
    value: Json = dict.fromkeys(keys) | {"type": tag}
    if tag in PARTS and "response_" in name:
        for where in (
            {"role": "user", "content": [value]},
            {"type": "reasoning", "content": [value]},
        ):
            assert decoded(input=[where]).unknown == ()
    elif tag in ITEM_TYPES and not name.endswith("ToolParam"):
        assert decoded(input=[value]).unknown == ()
    elif tag in TOOL_TYPES:
        assert decoded(tools=[value]).unknown == ()
