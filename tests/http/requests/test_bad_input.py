"""Bad input: a 4xx that names the field, never a 5xx, and the server goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from antiphon.domain.bounds import MAX_MEMBERS
from antiphon.domain.requests.checks import MAX_CONSTRAINT_CHARS
from antiphon.domain.requests.decoding import MAX_FIELDS, MAX_PART_VALUES
from antiphon.domain.requests.request import MAX_TOOLS

BASE = {"model": "scripted-chat", "input": "hi"}


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert len(answer.content) < 2000
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    return error


@pytest.fixture(autouse=True)
def _server_goes_on(http: httpx.Client) -> Any:
    yield
    assert http.post("/responses", json=BASE).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[1,2]",
        b'"hi"',
        b"model=x",
        b'{"model":"m","input":"x"',
        b'{"model":"m","input":"x"} }',
        b'{"model":"m","input":"x","temperature":NaN}',
        b'{"model":"m","input":"\xff\xfe"}',
        b'{"model":"m","input":"\xc3"}',
        b'{"model":"scripted-chat","input":"x","unknown":"\xff"}',
        b'{"model":"m","input":"\\ud800"}',
        b'{"model":"m","input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"m","input":"x","metadata":' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}",
        b'{"model":"m","max_output_tokens":' + b"9" * 100_000 + b"}",
        b'{"model":"m","input":[' + b"{}," * 200_001 + b"{}]}",
    ],
)
def test_a_body_that_is_no_sound_json_is_refused(http: httpx.Client, body: bytes) -> None:
    began = time.process_time()
    headers = {"content-type": "application/json"}
    refused(http.post("/responses", content=body, headers=headers))
    assert time.process_time() - began < 3


def test_a_body_that_is_too_large_is_refused(serve: Callable[..., Any]) -> None:
    with serve(max_body_bytes=10_000) as server:
        url = f"{server.api}/responses"
        assert httpx.post(url, json={**BASE, "input": "x" * 9000}).status_code == 200
        refused(httpx.post(url, json={**BASE, "input": "x" * 20_000}), 413)
        parts = (b"x" * 1000 for _ in range(50))  # sent without saying how long it will be
        headers = {"content-type": "application/json"}
        refused(httpx.post(url, content=parts, headers=headers), 413)


def test_a_body_that_is_not_json_by_its_type_is_refused(http: httpx.Client) -> None:
    sent = http.post("/responses", content=b"{}", headers={"content-type": "text/plain"})
    refused(sent, 415)


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("temperature", "hot", "temperature"),
        ("temperature", 2.5, "temperature"),
        ("input", {"a": 1}, "input"),
        ("model", 5, "model"),
        ("model", "no-such-model", "model"),
        ("previous_response_id", 7, "previous_response_id"),
        ("previous_response_id", "resp_" + "0" * 48, "previous_response_id"),
        ("include", ["bogus.value"], "include[0]"),
        ("tool_choice", "sometimes", "tool_choice"),
        ("tools", [{"type": "tool_search", "execution": "nobody"}], "tools[0].execution"),
        ("metadata", {"k": 5}, "metadata.k"),
        ("input", [{"type": "item_reference", "id": "msg_none"}], "input"),
        (
            "input",
            [{"type": "function_call_output", "call_id": "call_none", "output": "x"}],
            "input",
        ),
        (
            "text",
            {"format": {"type": "json_schema", "name": "x", "schema": "no object"}},
            "text.format.schema",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named_before_any_stream(
    http: httpx.Client, field: str, value: Any, param: str, stream: bool
) -> None:
    answer = http.post("/responses", json={**BASE, "stream": stream, field: value})
    assert answer.headers["content-type"].startswith("application/json")
    assert refused(answer)["param"] == param


def test_a_thousand_bogus_items_get_one_short_error(http: httpx.Client) -> None:
    items = [{"type": f"bogus_{n}", "x": n} for n in range(1000)]
    assert refused(http.post("/responses", json={**BASE, "input": items}))["param"] == (
        "input[0].type"
    )


def test_a_tool_schema_that_nests_too_deeply_is_refused(http: httpx.Client) -> None:
    deep = b'{"type":"object","properties":{"a":' * 200 + b"{}" + b"}}" * 200
    body = json.dumps(BASE).encode()[:-1]
    body += b',"tools":[{"type":"function","name":"f","parameters":' + deep + b"}]}"
    refused(http.post("/responses", content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/no-such-path", 404),
        ("PUT", "/responses", 405),
        ("DELETE", "/responses", 405),
        ("PATCH", "/responses", 405),
        ("PATCH", "/responses/resp_x", 405),
        ("GET", "/responses/resp_x", 404),
        ("GET", "/responses/nonsense%00", 404),
        ("GET", "/responses/resp_x/input_items", 404),
    ],
)
def test_a_wrong_path_or_method_has_the_same_shape_of_error(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    refused(http.request(method, path), status)


def test_a_wrong_method_says_which_are_allowed(http: httpx.Client) -> None:
    assert "POST" in http.put("/responses").headers["allow"]


def test_odd_but_legal_characters_come_back(http: httpx.Client) -> None:
    odd = {"k": "a\u0000b 😀 \u2028"}
    escaped = json.dumps({**BASE, "metadata": odd}).encode()
    headers = {"content-type": "application/json"}
    created = http.post("/responses", content=escaped, headers=headers).json()
    assert created["metadata"] == odd
    assert http.get(f"/responses/{created['id']}").json() == created


@pytest.mark.parametrize("log_requests", [False, True])
@pytest.mark.parametrize("key", [{}, {"idempotency-key": "k"}])
@pytest.mark.parametrize("background", [False, True])
def test_what_no_field_reads_is_sound_whatever_is_done_with_the_body(
    serve: Callable[..., Any], log_requests: bool, key: dict[str, str], background: bool
) -> None:
    body = b'{"unknown": [1e999, -1e999, 9%b, "\\ud83d\\ude00"], %b' % (
        b"9" * 300,
        json.dumps({**BASE, "background": background}).encode()[1:],
    )
    headers = {"content-type": "application/json", **key}
    with serve(log_requests=log_requests) as server:
        answer = httpx.post(f"{server.api}/responses", content=body, headers=headers)
    assert answer.status_code == 200, answer.text


def test_nulls_everywhere_count_as_omitted(http: httpx.Client) -> None:
    nullable = ("instructions", "metadata", "tools", "tool_choice", "temperature", "top_p", "text")
    nulls = dict.fromkeys((*nullable, "reasoning", "truncation", "include", "stream", "store"))
    assert http.post("/responses", json={**BASE, **nulls}).status_code == 200


def test_an_unknown_field_is_refused_only_if_the_settings_say_so(serve: Callable[..., Any]) -> None:
    with serve(strict_unknown_fields=True) as server:
        answer = httpx.post(f"{server.api}/responses", json={**BASE, "made_up": 1})
    error = refused(answer)
    assert (error["code"], error["param"]) == ("unknown_parameter", "made_up")


@pytest.mark.parametrize(
    "choice",
    [
        "x" * 100_000,
        {"type": "x" * 100_000},
        {"type": "function", "name": "x" * 100_000},
        {"type": "allowed_tools", "mode": "x" * 100_000, "tools": []},
    ],
)
def test_an_error_repeats_little_of_a_long_tool_choice(http: httpx.Client, choice: Any) -> None:
    tools = [{"type": "function", "name": "f"}]
    answer = http.post("/responses", json={**BASE, "tools": tools, "tool_choice": choice})
    assert refused(answer)["param"] == "tool_choice"


@pytest.mark.parametrize("path", ["/conversations/{}", "/files?order={}", "/responses/{}"])
def test_an_error_repeats_little_of_a_long_path(http: httpx.Client, path: str) -> None:
    answer = http.get(path.format("x" * 20_000))
    refused(answer, answer.status_code)
    assert answer.status_code in (400, 404)


def test_a_body_with_too_many_fields_is_refused(http: httpx.Client) -> None:
    body = {**BASE, **{f"field_{number}": 1 for number in range(MAX_FIELDS)}}
    error = refused(http.post("/responses", json=body))
    assert error["code"] == "object_above_max_properties"


@pytest.mark.parametrize(
    ("field", "values", "code"),
    [
        ("input", [{"role": "user", "content": "x"}] * (MAX_MEMBERS + 1), "array_above_max_length"),
        ("tools", [{"type": "unknown"}] * (MAX_TOOLS + 1), "array_above_max_length"),
    ],
)
def test_too_many_items_or_tools_are_refused(
    http: httpx.Client, field: str, values: list[Any], code: str
) -> None:
    error = refused(http.post("/responses", json={**BASE, field: values}))
    assert (error["param"], error["code"]) == (field, code)


FIELDS_OF_SCHEMAS = {
    "text.format.schema": lambda schema: {
        "text": {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": schema}}
    },
    "structured_outputs.json": lambda schema: {"structured_outputs": {"json": schema}},
    "tools[1].parameters": lambda schema: {
        "tools": [
            {"type": "function", "name": "a"},
            {"type": "function", "name": "b", "strict": True, "parameters": schema},
        ]
    },
}


@pytest.mark.parametrize("param", FIELDS_OF_SCHEMAS)
@pytest.mark.parametrize(
    ("inner", "place", "problem"),
    [
        ({"type": "strng"}, "/type", "'strng'"),
        ({"type": ["string", 5]}, "/type", "list"),
        ({"type": []}, "/type", "list"),
        ({"$ref": "#/$defs/nowhere"}, "/$ref", "'#/$defs/nowhere', which is not in the schema"),
        ({"$ref": 5}, "/$ref", "5"),
        ({"items": "string"}, "/items", "'string'"),
        ({"anyOf": {"type": "string"}}, "/anyOf", "a list of schemas"),
        ({"properties": ["a"]}, "/properties", "an object of schemas"),
        ({"anyOf": [{"type": "object"}, {"items": {"type": "x"}}]}, "/anyOf/1/items/type", "'x'"),
        ({"uniqueItems": True}, "/uniqueItems", "cannot be enforced"),
        ({"items": {"not": {"type": "string"}}}, "/items/not", "cannot be enforced"),
        ({"if": {}, "then": {}}, "/if", "cannot be enforced"),
        ({"contains": {"const": 1}}, "/contains", "cannot be enforced"),
        ({"dependentRequired": {"a": ["b"]}}, "/dependentRequired", "cannot be enforced"),
        ({"dependentSchemas": {"a": {}}}, "/dependentSchemas", "cannot be enforced"),
        ({"enum": []}, "/enum", "is empty"),
        ({"enum": "a"}, "/enum", "'a'"),
        ({"anyOf": []}, "/anyOf", "is empty"),
        ({"anyOf": [False, {}]}, "/anyOf/0", "is false"),
        ({"properties": {"b": False}}, "/properties/b", "is false"),
        ({"pattern": "a("}, "/pattern", "invalid"),
        ({"pattern": 5}, "/pattern", "5"),
        ({"pattern": "^(?!a)b"}, "/pattern", "cannot be enforced"),
        ({"patternProperties": {"(?=a)": {}}}, "/patternProperties", "cannot be enforced"),
        ({"pattern": "a" * 9000}, "/pattern", "8192 characters"),
    ],
)
def test_a_schema_that_no_engine_can_take_is_refused_with_its_place(
    http: httpx.Client, param: str, inner: dict[str, Any], place: str, problem: str
) -> None:
    schema = {"type": "object", "properties": {"a": inner}}
    error = refused(http.post("/responses", json=BASE | FIELDS_OF_SCHEMAS[param](schema)))
    assert error["param"] == param
    assert f"#/properties/a{place} " in error["message"]
    assert problem in error["message"]


@pytest.mark.parametrize("param", FIELDS_OF_SCHEMAS)
def test_unusual_schemas_are_accepted(http: httpx.Client, param: str) -> None:
    schema = {
        "type": "object",
        "$defs": {"a/b": {"type": ["string", "null"]}, "n": {"$ref": "#"}, "l": {"enum": [1]}},
        "properties": {
            "type": {"$ref": "#/$defs/a~1b"},
            "$ref": {"anyOf": [{"$ref": "#/$defs/l"}, {"$ref": "#/properties/type"}, True]},
            "properties": {"const": {"type": "strng"}, "default": {"$ref": 5}},
            "n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "prefixItems": [{}]},
            "uniqueItems": {"type": "array", "items": False, "uniqueItems": False},
            "pattern": {"pattern": "b|^c"},
        },
        "additionalProperties": False,
    }
    answer = http.post("/responses", json=BASE | FIELDS_OF_SCHEMAS[param](schema))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("inner", [{"type": "any"}, {"uniqueItems": True}, {"pattern": "(?!a)"}])
def test_schemas_that_are_only_shown_may_be_odd(http: httpx.Client, inner: dict[str, Any]) -> None:
    closed = {"type": "object", "additionalProperties": False, "required": ["a"]}
    tool = {"type": "function", "name": "b", "parameters": closed | {"properties": {"a": inner}}}
    answer = http.post("/responses", json=BASE | {"tools": [tool], "tool_choice": "required"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tools"][0]["strict"] is False


@pytest.mark.parametrize(
    "inner", [{"uniqueItems": True}, {"not": {"const": 1}}, {"pattern": "(?!a)"}, {"if": {}}]
)
@pytest.mark.parametrize("is_strict", [None, False])
def test_a_format_that_is_not_strict_binds_as_far_as_it_can(
    http: httpx.Client, is_strict: bool | None, inner: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"a": inner, "b": {"type": "integer"}}}
    schema |= {"required": ["b"]}
    text_format = {"type": "json_schema", "name": "a", "schema": schema, "strict": is_strict}
    answer = http.post("/responses", json=BASE | {"text": {"format": text_format}})
    assert answer.status_code == 200, answer.text
    assert "b" in json.loads(answer.json()["output"][-1]["content"][0]["text"])
    assert answer.json()["text"]["format"]["schema"] == schema


@pytest.mark.parametrize("most", [1, 8, 15])
def test_few_tokens_may_be_asked_for(http: httpx.Client, most: int) -> None:
    answer = http.post("/responses", json=BASE | {"input": "hi " * 40, "max_output_tokens": most})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["output_tokens"] == most
    assert answer.json()["incomplete_details"] == {"reason": "max_output_tokens"}


def _schema(values: int) -> dict[str, Any]:
    return {"type": "object", "enum": [1] * values}


@pytest.mark.parametrize(
    ("param", "field_of"),
    [
        (
            "text",
            lambda schema: {
                "text": {
                    "format": {"type": "json_schema", "name": "a", "strict": True, "schema": schema}
                }
            },
        ),
        (
            "tools[1]",
            lambda schema: {
                "tools": [
                    {"type": "function", "name": "a"},
                    {"type": "function", "name": "b", "parameters": schema},
                ]
            },
        ),
        (
            "input[0]",
            lambda schema: {
                "input": [
                    {"type": "mcp_list_tools", "server_label": "s", "tools": [{"a": schema}]},
                    {"role": "user", "content": "hi"},
                ]
            },
        ),
    ],
)
def test_a_part_that_one_call_decodes_may_have_only_so_many_values(
    http: httpx.Client, param: str, field_of: Callable[[Any], dict[str, Any]]
) -> None:
    error = refused(http.post("/responses", json=BASE | field_of(_schema(MAX_PART_VALUES))))
    assert (error["param"], error["code"]) == (param, "invalid_value")
    fitting = http.post("/responses", json=BASE | field_of(_schema(MAX_PART_VALUES // 10)))
    assert f"more than {MAX_PART_VALUES} values" not in fitting.text


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("regex", lambda size: "a" * size),
        ("grammar", lambda size: "a" * size),
        ("choice", lambda size: ["a" * (size - 100), "b" * 100]),
    ],
)
def test_a_constraint_may_be_only_so_long(
    http: httpx.Client, kind: str, parts: Callable[[int], Any]
) -> None:
    body = BASE | {"structured_outputs": {kind: parts(MAX_CONSTRAINT_CHARS + 1)}}
    error = refused(http.post("/responses", json=body))
    assert error["param"] == f"structured_outputs.{kind}"
    assert error["code"] == "string_above_max_length"
    body = BASE | {"structured_outputs": {kind: parts(MAX_CONSTRAINT_CHARS)}}
    assert "characters in all" not in http.post("/responses", json=body, timeout=60).text


def test_a_list_of_many_short_items_may_have_more_values_than_one_part(http: httpx.Client) -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}] * 9_000
    assert MAX_PART_VALUES < 9_000 * 6
    answer = http.post("/responses", json=BASE | {"input": items, "max_output_tokens": 16})
    assert answer.status_code == 200, answer.text
