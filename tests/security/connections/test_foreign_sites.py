"""A server without keys answers to its own names, and to no page of another site."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import httpx
import pytest
from tests.security.support.raw_clients import connect, read_until_closed
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_websocket

SITE = "https://chat.example"
JSON_TYPE = {"content-type": "application/json"}
CREATE = json.dumps({"model": "scripted-chat", "input": "hi"}).encode()

OWN_HOSTS = (
    *("localhost", "LOCALHOST.:1", "app.localhost", "127.0.0.1", "127.8.9.1:80", "[::1]:8000"),
    *("192.0.2.7", "antiphon.example", "Antiphon.Example:8443"),
)
FOREIGN_HOSTS = (
    *("evil.example", "evil.example:8000", "localhost.evil.example", "evillocalhost", "x"),
    *("127.0.0.1.nip.io", "0x7f.1", "127.1", "2130706433", "sub.antiphon.example"),
)
ROUTES = (
    *(("GET", "/"), ("GET", "/console"), ("GET", "/schema"), ("GET", "/metrics")),
    *(("GET", "/v1/models"), ("GET", "/v1/responses"), ("POST", "/v1/responses")),
    *(("POST", "/v1/conversations"), ("POST", "/v1/files"), ("DELETE", "/v1/files/file_1")),
    *(("POST", "/v1/responses/resp_1/cancel"), ("GET", "/nothing"), ("OPTIONS", "/v1/responses")),
)

PAGES: Mapping[str, tuple[dict[str, str], bool]] = {
    "no page": ({}, True),
    "a page of this server": ({"origin": "OWN", "sec-fetch-site": "same-origin"}, True),
    "an old browser's page of this server": ({"origin": "OWN"}, True),
    "an address that a person has typed": ({"sec-fetch-site": "none"}, True),
    "an allowed page": ({"origin": SITE, "sec-fetch-site": "cross-site"}, True),
    "a page of another site": (
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        False,
    ),
    "an old browser's page": ({"origin": "https://evil.example"}, False),
    "a page without an origin": ({"origin": "null", "sec-fetch-site": "cross-site"}, False),
    "a script or image of another site": (
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        False,
    ),
    "a page of another port": (
        {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
        False,
    ),
    "a form": (
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "x"},
        False,
    ),
}


@pytest.fixture(scope="module")
def keyless(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("keyless")
    options = {"store": "sqlite", "cors_origin": [SITE], "allowed_host": ["antiphon.example"]}
    with serve_from(folder, **options) as server:
        yield server


def code_of(answer: httpx.Response) -> str | None:
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    error = answer.json().get("error") if is_json else None
    return None if error is None else error["code"]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_it_answers_to_its_own_names(keyless: Any, host: str) -> None:
    for method, path in ROUTES:
        answer = httpx.request(method, f"{keyless.url}{path}", headers={"host": host})
        assert code_of(answer) != "foreign_host", (method, path)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_it_answers_to_no_other_name(keyless: Any, host: str) -> None:
    for method, path in ROUTES:
        answer = httpx.request(method, f"{keyless.url}{path}", headers={"host": host})
        assert (answer.status_code, code_of(answer)) == (403, "foreign_host"), (method, path)
        assert "--allowed-host" in answer.json()["error"]["message"]


def test_a_health_check_may_use_any_name(keyless: Any) -> None:
    for path in ("/livez", "/readyz"):
        assert httpx.get(f"{keyless.url}{path}", headers={"host": "pod.local"}).is_success


def test_a_request_without_a_name_is_answered(keyless: Any) -> None:
    with connect(keyless) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert read_until_closed(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("page", "route"), [*product(PAGES, ROUTES)])
def test_pages_of_other_sites_can_do_nothing(
    keyless: Any, page: str, route: tuple[str, str]
) -> None:
    method, path = route
    headers, is_own = PAGES[page]
    headers = {name: value.replace("OWN", keyless.url) for name, value in headers.items()}
    answer = httpx.request(method, f"{keyless.url}{path}", headers=headers)
    is_refused = not is_own and method != "OPTIONS"
    assert (code_of(answer) == "foreign_origin") is is_refused


def test_a_link_on_another_site_may_lead_here(keyless: Any) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    page = httpx.get(f"{keyless.url}/", headers=headers | {"accept": "text/html"})
    assert page.status_code == 200
    refused = httpx.post(f"{keyless.url}/v1/responses", headers=headers | JSON_TYPE, content=CREATE)
    assert code_of(refused) == "foreign_origin"


@pytest.mark.parametrize("page", PAGES)
def test_pages_of_other_sites_open_no_websocket(keyless: Any, page: str) -> None:
    headers, is_own = PAGES[page]
    headers = {name: value.replace("OWN", keyless.url) for name, value in headers.items()}
    url = f"{keyless.api.replace('http', 'ws', 1)}/responses"
    if is_own:
        with open_websocket(url, additional_headers=headers):
            return
    with (
        pytest.raises(InvalidStatus) as refused,
        open_websocket(url, additional_headers=headers),
    ):
        pass
    assert refused.value.response.status_code == 403


def test_a_websocket_has_a_name_of_the_server(keyless: Any) -> None:
    with connect(keyless) as connection:
        connection.sendall(
            b"GET /v1/responses HTTP/1.1\r\nhost: evil.example\r\nconnection: Upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("headers", [{}, {"content-type": ""}, {"content-type": "text/plain"}])
def test_a_body_needs_its_type(keyless: Any, headers: dict[str, str]) -> None:
    for path in ("/v1/responses", "/v1/conversations", "/v1/responses/input_tokens"):
        request = httpx.Request("POST", f"{keyless.url}{path}", headers=headers, content=CREATE)
        with httpx.Client() as client:
            answer = client.send(request)
        assert answer.status_code == 415
        assert "application/json" in answer.json()["error"]["message"]


def test_with_keys_names_do_not_matter_unless_they_are_set(serve: Any) -> None:
    for names, status in (((), 401), (("antiphon.example",), 403)):
        with serve(auth="on", store="sqlite", allowed_host=names) as server:
            answer = httpx.get(f"{server.api}/models", headers={"host": "evil.example"})
            assert answer.status_code == status
