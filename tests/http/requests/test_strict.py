"""A strict server refuses what would have no effect, where others name it in a header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create
from websockets.sync.client import connect

BASE = {"model": "scripted-chat", "input": "Hi"}
FUNCTION = {"type": "function", "name": "add"}
UNRUN = {"type": "programmatic_tool_calling"}
CONNECTOR = {"type": "mcp", "server_label": "mail", "connector_id": "connector_gmail"}
FOR_PROGRAMS = {"type": "function", "name": "sum", "allowed_callers": ["programmatic"]}


@pytest.fixture(scope="module")
def strict(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serve_from(tmp_path_factory.mktemp("strict"), strict=True) as server:
        yield server


@pytest.fixture
def client(strict: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=strict.api, timeout=30) as client:
        yield client


def refused(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


CASES: list[tuple[dict[str, Any], str, str]] = [
    (
        {"tools": [FOR_PROGRAMS]},
        "tools[0]",
        "'tools[0]' would have no effect: only programs may call it (allowed_callers), and the "
        "request has no tool 'programmatic_tool_calling' that this server runs.",
    ),
    (
        {"tools": [FUNCTION, CONNECTOR]},
        "tools[1]",
        "'tools[1]' would have no effect: this server cannot call the MCP server labelled 'mail'.",
    ),
    (
        {"tools": [{"type": "image_generation"}]},
        "tools[0]",
        "'tools[0]' would have no effect: this server does not run the tool 'image_generation' "
        "(the setting images.url turns it on).",
    ),
    (
        {"service_tier": "scale"},
        "service_tier",
        "'service_tier' would have no effect: this server does nothing with it.",
    ),
    (
        {"tools": [UNRUN, CONNECTOR], "session_id": "s"},
        "tools[0]",
        "'tools[0]' would have no effect: this server does not run the tool "
        "'programmatic_tool_calling' (the setting programs turns it on). Nor would tools[1], "
        "session_id.",
    ),
]


@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens", "/responses/compact"])
@pytest.mark.parametrize(("fields", "param", "message"), CASES)
def test_a_part_without_effect_is_refused_by_its_path(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str, message: str
) -> None:
    error = refused(client.post(path, json={**BASE, **fields}))
    assert error == {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": "unsupported_parameter",
    }


USER = {"role": "user"}
TEXT = {"type": "input_text", "text": "Hi"}

KEYS: list[tuple[dict[str, Any], str, str]] = [
    ({"reasoning": {"efort": "high"}}, "reasoning.efort", "unknown_parameter"),
    ({"text": {"verbosty": "low"}}, "text.verbosty", "unknown_parameter"),
    ({"tools": [FUNCTION | {"parametrs": {}}]}, "tools[0].parametrs", "unknown_parameter"),
    ({"input": [USER | {"content": "Hi", "nme": "a"}]}, "input[0].nme", "unknown_parameter"),
    (
        {"input": [USER | {"content": [TEXT | {"foo": 1}]}]},
        "input[0].content[0].foo",
        "unknown_parameter",
    ),
    (
        {"input": [USER | {"content": [TEXT | {"prompt_cache_breakpoint": {"mode": "explicit"}}]}]},
        "input[0].content[0].prompt_cache_breakpoint",
        "unsupported_parameter",
    ),
    (
        {"context_management": [{"type": "compaction"}, {"type": "compaction"}]},
        "context_management[1]",
        "unsupported_parameter",
    ),
    ({"tools": [FUNCTION | {"async": True}]}, "tools[0].async", "unsupported_parameter"),
]


@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens"])
@pytest.mark.parametrize(("fields", "param", "code"), KEYS)
def test_a_key_without_effect_is_refused_at_any_depth(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str, code: str
) -> None:
    error = refused(client.post(path, json={**BASE, **fields}))
    assert (error["param"], error["code"]) == (param, code)
    assert repr(param) in error["message"]


@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens"])
@pytest.mark.parametrize(("fields", "param", "code"), KEYS)
def test_without_strict_such_a_key_is_named_once(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, code: str
) -> None:
    answer = http.post(path, json={**BASE, **fields})
    assert answer.status_code == 200, code
    assert answer.headers["x-antiphon-ignored"] == param


@pytest.mark.parametrize(("fields", "param", "code"), KEYS)
def test_on_a_websocket_it_is_refused_or_logged(
    strict: Any, server: Any, caplog: Any, fields: dict[str, Any], param: str, code: str
) -> None:
    caplog.set_level("INFO", "antiphon.requests")
    frame = json.dumps({"type": "response.create", "stream_id": "a", **BASE, **fields})
    with connect(strict.api.replace("http", "ws", 1) + "/responses") as connection:
        connection.send(frame)
        error = json.loads(connection.recv(timeout=30))["error"]
    assert (error["param"], error["code"]) == (param, code)
    with connect(server.api.replace("http", "ws", 1) + "/responses") as connection:
        connection.send(frame)
        assert json.loads(connection.recv(timeout=30))["type"] == "response.created"
    assert f"without effect: {param}" in caplog.text


def test_an_unknown_field_is_refused_too(client: httpx.Client) -> None:
    error = refused(client.post("/responses", json={**BASE, "made_up": 1}))
    assert (error["param"], error["code"]) == ("made_up", "unknown_parameter")


def test_an_idempotency_key_of_an_unstored_response_is_refused(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "once"}
    answer = client.post("/responses", json={**BASE, "store": False}, headers=headers)
    assert refused(answer)["param"] == "Idempotency-Key"


def test_a_query_that_would_not_be_rewritten_is_refused(client: httpx.Client) -> None:
    store = client.post("/vector_stores", json={}).json()["id"]
    body = {"query": "psalms", "rewrite_query": True}
    answer = client.post(f"/vector_stores/{store}/search", json=body)
    assert refused(answer)["param"] == "rewrite_query"


def test_on_a_websocket_it_is_an_error_frame(strict: Any) -> None:
    url = strict.api.replace("http", "ws", 1) + "/responses"
    with connect(url) as connection:
        connection.send(json.dumps({"type": "response.create", **BASE, "tools": [UNRUN]}))
        frame = json.loads(connection.recv(timeout=30))
    assert frame["type"] == "error"
    assert frame["error"]["param"] == "tools[0]"


def test_a_refused_request_leaves_its_idempotency_key_free(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "again"}
    refused(client.post("/responses", json={**BASE, "tools": [UNRUN]}, headers=headers))
    assert client.post("/responses", json=BASE, headers=headers).status_code == 200


def test_a_request_of_which_all_has_an_effect_is_answered(client: httpx.Client) -> None:
    response = create(client, **BASE, tools=[FUNCTION], service_tier="auto", metadata={"a": "b"})
    assert response["status"] == "completed"


def test_parts_of_an_earlier_response_are_not_refused_again(client: httpx.Client) -> None:
    first = create(client, **BASE)
    assert create(client, **BASE, previous_response_id=first["id"])["status"] == "completed"


def test_without_strict_the_same_is_answered_and_named_in_a_header(http: httpx.Client) -> None:
    for fields, param, _ in CASES:
        answer = http.post("/responses", json={**BASE, **fields})
        assert answer.status_code == 200
        assert answer.headers["x-antiphon-ignored"].split(", ")[0] == param
