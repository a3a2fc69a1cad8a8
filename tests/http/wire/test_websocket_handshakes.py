"""How WebSocket connections are opened, and which handshakes are refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.http.wire.websocket_client import Client, url_of
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect


def test_a_plain_get_is_no_websocket(http: httpx.Client) -> None:
    answer = http.get("/responses")
    assert answer.status_code == 200
    assert answer.json()["object"] == "list"


UPGRADE = {"connection": "Upgrade", "upgrade": "websocket"}


@pytest.mark.parametrize("path", ["/models", "/responses/resp_1", "/nowhere", "/responsesx"])
@pytest.mark.one_process
def test_an_upgrade_elsewhere_is_answered_as_http(http: httpx.Client, path: str) -> None:
    plain = http.get(path)
    answer = http.get(path, headers=UPGRADE)
    assert answer.status_code == plain.status_code
    assert answer.json() == plain.json()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-websocket-version": "13"},
        {"sec-websocket-version": "13", "sec-websocket-key": "short"},
        {"sec-websocket-version": "7", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="},
        {"x-long": "a" * 20_000},
        {f"x-{n}": "a" for n in range(200)},
    ],
)
def test_a_wrong_handshake_is_an_http_error(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.get("/responses", headers={**UPGRADE, **headers})
    assert 400 <= answer.status_code < 500
    assert http.get("/models").status_code == 200


def test_any_query_and_any_header_of_a_client_is_accepted(server: Any) -> None:
    headers = {
        "Authorization": "Bearer none",
        "OpenAI-Beta": "responses_websockets=2026-02-06",
        "x-request-id": "mine-1",
    }
    with connect(f"{url_of(server)}?a=b", additional_headers=headers, proxy=None) as connection:
        assert connection.response is not None
        assert connection.response.headers["x-request-id"] == "mine-1"
        assert "sec-websocket-extensions" not in connection.response.headers
        assert Client(connection).turn()["status"] == "completed"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "file://"])
def test_a_web_page_of_another_host_may_not_connect(server: Any, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(url_of(server), additional_headers={"Origin": origin}, proxy=None)
    answer = refused.value.response
    assert answer.status_code == 403
    assert "Origin" in json.loads(answer.body)["error"]["message"]
    assert answer.headers["x-request-id"]


def test_a_web_page_of_this_host_may_connect(server: Any) -> None:
    with connect(
        url_of(server), additional_headers={"Origin": server.url}, proxy=None
    ) as connection:
        assert Client(connection).turn()["status"] == "completed"


def test_an_unknown_path_refuses_the_handshake(server: Any) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"{url_of(server)}/resp_1", proxy=None)
    assert refused.value.response.status_code == 404


def test_a_session_is_named_as_ignored_because_a_connection_has_none(server: Any) -> None:
    named = {"x-antiphon-session": "work"}
    with connect(url_of(server), additional_headers=named, proxy=None) as connection:
        assert connection.response is not None
        assert connection.response.headers["x-antiphon-ignored"] == "x-antiphon-session"
