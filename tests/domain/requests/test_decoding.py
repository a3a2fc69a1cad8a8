"""Decoding requests: what is accepted, and that every error names its field."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from antiphon.domain import items as i
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import check_input, entries, entry, to_resource
from antiphon.domain.requests.decoding import decode_item, decode_request, decode_tool
from antiphon.domain.requests.request import CreateResponse, Effort
from antiphon.domain.tools import TOOL_TYPES, FunctionTool, UnknownTool


def request(**fields: Any) -> CreateResponse:
    return decode_request(json.dumps({"model": "m", "input": "hi", **fields}).encode()).request


def error_of(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decoded = request(**fields)
        check_input(entries(decoded.input))
        for position, raw in enumerate(decoded.tools or ()):
            decode_tool(raw, f"tools[{position}]")
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "param", "code"),
    [
        ("temperature", "hot", "temperature", "invalid_type"),
        ("temperature", True, "temperature", "invalid_type"),
        ("temperature", -1, "temperature", "decimal_below_min_value"),
        ("top_p", 1.5, "top_p", "decimal_above_max_value"),
        ("max_output_tokens", 0, "max_output_tokens", "integer_below_min_value"),
        ("max_output_tokens", 2**70, "max_output_tokens", "integer_above_max_value"),
        ("top_logprobs", 21, "top_logprobs", "integer_above_max_value"),
        ("input", 5, "input", "invalid_type"),
        ("tools", "x", "tools", "invalid_type"),
        ("tools", [5], "tools[0]", "invalid_type"),
        ("tools", [{"type": "function"}], "tools[0].name", "missing_required_parameter"),
        ("tools", [{"name": "f"}], "tools[0].type", "missing_required_parameter"),
        ("metadata", {"j": "v", "k": 5}, "metadata.k", "invalid_type"),
        ("metadata", {"j": "v", "k" * 65: "v"}, "metadata." + "k" * 65, "string_above_max_length"),
        ("metadata", {"k": "v" * 513}, "metadata.k", "string_above_max_length"),
        (
            "metadata",
            {str(n): "v" for n in range(17)},
            "metadata",
            "object_above_max_properties",
        ),
        ("include", ["bogus"], "include[0]", "invalid_value"),
        ("truncation", "sometimes", "truncation", "invalid_value"),
        ("reasoning", {"effort": "bogus"}, "reasoning.effort", "invalid_value"),
        ("text", {"format": {"type": "nonsense"}}, "text.format.type", "invalid_value"),
        (
            "text",
            {"format": {"type": "json_schema", "schema": {}}},
            "text.format.name",
            "missing_required_parameter",
        ),
        ("messages", [], "messages", "unsupported_parameter"),
        ("input", [{"type": "made_up"}], "input[0].type", "invalid_value"),
        ("input", [{"x": 1}], "input[0].type", "missing_required_parameter"),
        ("input", [{"role": "wizard", "content": "x"}], "input[0].role", "invalid_value"),
        (
            "input",
            [{"role": "user", "content": [{"type": "input_text", "text": 5}]}],
            "input[0].content[0].text",
            "invalid_type",
        ),
        (
            "input",
            [{"type": "function_call_output", "output": "x"}],
            "input[0].call_id",
            "missing_required_parameter",
        ),
    ],
)
def test_the_error_of_an_invalid_field_has_its_path_and_a_code(
    field: str, value: Any, param: str, code: str
) -> None:
    error = error_of(**{field: value})
    assert (error.param, error.code) == (param, code)
    assert len(error.message) < 1000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[1]",
        b'"hi"',
        b'{"model":"m"',
        b'{"model":"m"} }',
        b'{"temperature":NaN}',
        b'{"input":"\xff"}',
        b'{"input":"\\ud800"}',
        b'{"input":"\\udc00 alone"}',
        b'{"input":' + b"[" * 100_000,
        b'{"max_output_tokens":' + b"9" * 100_000 + b"}",
    ],
)
def test_a_body_that_is_not_a_valid_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        decode_request(body)


@pytest.mark.parametrize("before", ["", "\\ud83d\\ude00", "\\\\", "\\n", "ü"])
@pytest.mark.parametrize("half", ["\\ud800", "\\uDBFF", "\\udc00", "\\uDfFf"])
@pytest.mark.parametrize("after", ["", "x", "\\n", "\\ud83d\\ude00", "and a good deal more"])
def test_half_of_a_surrogate_pair_is_named_with_its_place(
    before: str, half: str, after: str
) -> None:
    start = f'{{"input":"{before}'.encode()
    for end in ('"}', '","unknown":[{"a":"b"}]}'):
        with pytest.raises(RequestError) as refused:
            decode_request(start + f"{half}{after}{end}".encode())
        assert f"('{half}' is half of a surrogate pair" in refused.value.message
        assert f"(byte {len(start)})" in refused.value.message


@pytest.mark.parametrize("end", ["\\ud83d", "\\ud83d\\", "\\ud83d\\u", "\\ud83d\\ude0", "\\ud8"])
def test_a_body_that_is_cut_off_within_a_pair_is_cut_off(end: str) -> None:
    with pytest.raises(RequestError, match="truncated"):
        decode_request(f'{{"input":"{end}'.encode())


def test_a_surrogate_pair_is_a_character() -> None:
    assert decode_request(b'{"input":"\\ud83d\\ude00"}').request.input == "😀"


def test_unknown_fields_are_reported_and_null_means_omitted() -> None:
    decoded = decode_request(b'{"model":"m","made_up":1,"temperature":null,"tools":null}')
    assert decoded.unknown == ("made_up",)
    assert decoded.request.temperature is None


def test_an_easy_message_needs_no_type() -> None:
    item = decode_item(b'{"role":"user","content":"hi"}', "input[0]")
    assert item == i.Message(role="user", content="hi")


def test_an_id_alone_is_a_reference() -> None:
    assert decode_item(b'{"id":"msg_1","type":null}', "input[0]") == i.ItemReference(id="msg_1")


def test_nulls_and_unknown_keys_of_a_replayed_item_are_accepted() -> None:
    raw = (
        b'{"type":"reasoning","id":"rs_1","summary":[],"content":null,"encrypted_content":null,'
        b'"status":null,"created_by":"x"}'
    )
    assert isinstance(decode_item(raw, "input[0]"), i.Reasoning)


def test_a_list_shows_the_original_fields_and_those_of_every_item() -> None:
    new_entry = entries([msgspec.Raw(b'{"role":"user","content":"hi","made_up":[1]}')])[0]
    item_id, raw = to_resource(new_entry, lambda prefix: f"{prefix}_new")
    assert item_id == "msg_new"
    assert msgspec.json.decode(raw) == {
        "type": "message",
        "id": "msg_new",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
        "made_up": [1],
    }


def test_an_unknown_tool_stays_unchanged() -> None:
    tool = decode_tool(b'{"type":"acme:search","depth":3}', "tools[0]")
    assert tool == UnknownTool(raw={"type": "acme:search", "depth": 3})


def test_a_function_needs_only_a_name() -> None:
    assert decode_tool(b'{"type":"function","name":"f"}', "tools[0]") == FunctionTool(name="f")


def test_every_tool_type_of_the_api_is_known() -> None:
    assert {"function", "custom", "namespace", "mcp", "web_search", "shell"} <= set(TOOL_TYPES)


@pytest.mark.parametrize(
    "head",
    ['"role": "assistant", "content"', '"type": "function_call_output", "call_id": "c", "output"'],
)
def test_log_probabilities_of_any_shape_are_kept_without_their_spaces(head: str) -> None:
    logprobs = '[{\n  "token": "a\\n", "x": [1.50,\r\n null]}, 7]'
    part = f'{{"type": "output_text", "text": "a", "logprobs": {logprobs}}}'
    item: Any = decode_item(f"{{{head}: [{part}]}}".encode(), "input[0]")
    part_of = (item.content if isinstance(item, i.Message) else item.output)[0]
    assert part_of.logprobs == (Raw(b'{"token":"a\\n","x":[1.5,null]}'), Raw(b"7"))


@pytest.mark.parametrize("head", ['"role"', '"type": "message", "role"'])
def test_a_number_that_is_too_large_for_log_probabilities_is_refused(head: str) -> None:
    part = '{"type": "output_text", "text": "a", "logp\\u0072obs": [1e999]}'
    with pytest.raises(RequestError) as caught:
        decode_item(f'{{{head}: "assistant", "content": [{part}]}}'.encode(), "input[0]")
    assert caught.value.param == "input[0]"


def test_an_item_that_the_server_made_can_be_sent_back() -> None:
    call = i.FunctionCall(id="fc_1", status="completed", call_id="c", name="f", arguments="{}")
    assert decode_item(entry(call).raw, "input[0]") == call


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_request_error(body: bytes) -> None:
    try:
        decode_request(body)
    except RequestError as error:
        assert error.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELD_NAMES = st.sampled_from(sorted(CreateResponse.__struct_fields__))


@settings(max_examples=300)
@given(st.dictionaries(FIELD_NAMES, JSON, max_size=3))
def test_no_field_value_raises_anything_but_a_request_error_with_its_param(
    fields: dict[str, Any],
) -> None:
    try:
        decoded = decode_request(json.dumps(fields).encode()).request
        entries(decoded.input)
        for position, raw in enumerate(decoded.tools or ()):
            decode_tool(raw, f"tools[{position}]")
    except RequestError as error:
        assert error.param is None or error.param.split(".")[0].split("[")[0] in fields


def wrong_choices() -> list[tuple[dict[str, Any], str, tuple[str, ...]]]:
    def item(**fields: Any) -> dict[str, Any]:
        return {"input": [fields]}

    fields = msgspec.inspect.type_info(CreateResponse).fields  # type: ignore[attr-defined]
    top_level = [
        ({field.name: "bogus"}, field.name, each.values)
        for field in fields
        if isinstance(field.type, msgspec.inspect.UnionType)
        for each in field.type.types
        if isinstance(each, msgspec.inspect.LiteralType)
    ]
    image = {"type": "input_image", "image_url": "https://x/y", "detail": "bogus"}
    return [
        *top_level,
        ({"reasoning": {"effort": "bogus"}}, "reasoning.effort", get_args(Effort)),
        ({"reasoning": {"summary": "bogus"}}, "reasoning.summary", ("auto", "concise", "detailed")),
        ({"text": {"verbosity": "bogus"}}, "text.verbosity", ("low", "medium", "high")),
        (
            {"text": {"format": {"type": "bogus"}}},
            "text.format.type",
            ("json_object", "json_schema", "text"),
        ),
        ({"include": ["bogus"]}, "include[0]", ("metrics", "reasoning.encrypted_content")),
        (
            item(role="bogus", content="x"),
            "input[0].role",
            ("assistant", "developer", "system", "user"),
        ),
        (
            item(role="assistant", content="x", phase="bogus"),
            "input[0].phase",
            ("commentary", "final_answer"),
        ),
        (
            item(role="user", content=[image]),
            "input[0].content[0].detail",
            ("auto", "high", "low", "original"),
        ),
        (
            item(role="user", content=[{"type": "bogus"}]),
            "input[0].content[0].type",
            ("input_image", "input_text", "output_text"),
        ),
        (item(type="bogus"), "input[0].type", ("function_call", "message")),
        (
            {"tools": [{"type": "web_search", "search_context_size": "bogus"}]},
            "tools[0].search_context_size",
            ("low", "medium", "high"),
        ),
    ]


@pytest.mark.parametrize(("fields", "param", "values"), wrong_choices())
def test_an_error_about_a_wrong_choice_lists_what_is_allowed(
    fields: dict[str, Any], param: str, values: tuple[str, ...]
) -> None:
    error = error_of(**fields)
    assert (error.param, error.code) == (param, "invalid_value")
    assert "bogus" in error.message
    for value in values:
        assert str(value) in error.message


@pytest.mark.parametrize("stop", ["", [""], ["x", ""]])
def test_an_empty_stop_string_is_refused(stop: Any) -> None:
    error = error_of(stop=stop)
    assert str(error.param).startswith("stop")
    assert error.code == "string_below_min_length"


@pytest.mark.parametrize("size", [65, 256])
def test_the_ids_of_calls_may_be_long(size: int) -> None:
    call = {"type": "function_call", "call_id": "c" * size, "name": "f", "arguments": ""}
    assert isinstance(decode_item(json.dumps(call).encode(), "input[0]"), i.FunctionCall)


def test_the_ids_of_calls_have_a_bound() -> None:
    call = {"type": "function_call", "call_id": "c" * 257, "name": "f", "arguments": ""}
    error = error_of(input=[call])
    assert (error.param, error.code) == ("input[0].call_id", "string_above_max_length")
    assert "256" in error.message
