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
        ("metadata", {"k": 5}, "metadata"),
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


def _schema(values: int) -> dict[str, Any]:
    return {"type": "object", "enum": [1] * values}


@pytest.mark.parametrize(
    ("param", "field_of"),
    [
        (
            "text",
            lambda schema: {
                "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}
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
