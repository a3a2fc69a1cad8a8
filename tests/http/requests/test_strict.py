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
MISTYPED = {"type": "web_serch"}
UNLABELLED = {"type": "mcp", "server_label": "lenghts"}


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
        {"tools": [MISTYPED]},
        "tools[0]",
        "'tools[0]' would have no effect: this server does not know the tool type 'web_serch'.",
    ),
    (
        {"tools": [FUNCTION, UNLABELLED]},
        "tools[1]",
        "'tools[1]' would have no effect: this server knows no tool server labelled 'lenghts'.",
    ),
    (
        {"tools": [{"type": "image_generation"}]},
        "tools[0]",
        "'tools[0]' would have no effect: this server does not run the tool 'image_generation'.",
    ),
    (
        {"service_tier": "scale"},
        "service_tier",
        "'service_tier' would have no effect: this server does nothing with it.",
    ),
    (
        {"tools": [MISTYPED, UNLABELLED], "session_id": "s"},
        "tools[0]",
        "'tools[0]' would have no effect: this server does not know the tool type 'web_serch'. "
        "Nor would tools[1], session_id.",
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
        connection.send(json.dumps({"type": "response.create", **BASE, "tools": [MISTYPED]}))
        frame = json.loads(connection.recv(timeout=30))
    assert frame["type"] == "error"
    assert frame["error"]["param"] == "tools[0]"


def test_a_refused_request_leaves_its_idempotency_key_free(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": "again"}
    refused(client.post("/responses", json={**BASE, "tools": [MISTYPED]}, headers=headers))
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
