"""Web pages of other sites may call the server only if the settings name their site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.wire.websocket_client import Client, url_of
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

SITE, OTHER = "https://chat.example", "https://evil.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


@pytest.fixture(scope="module")
def allowing(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("cors")
    options = {"auth": "on", "store": "sqlite", "cors_origin": [f"{SITE}:443"]}
    with serve_from(folder, **options) as server:
        yield server


def ask(server: Any, method: str, origin: str, **headers: str) -> httpx.Response:
    all_headers = {"origin": origin, **headers}
    return httpx.request(method, f"{server.api}/responses", headers=all_headers)


def test_a_preflight_needs_no_key(allowing: Any) -> None:
    answer = ask(allowing, "OPTIONS", SITE, **PREFLIGHT)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == SITE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "access-control-allow-credentials" not in answer.headers


def test_pages_can_read_errors_and_the_headers_for_clients(allowing: Any) -> None:
    answer = ask(allowing, "POST", SITE)
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == SITE
    assert answer.headers["vary"] == "origin"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", [OTHER, "null", f"{SITE}.evil.example", SITE.upper()])
def test_pages_of_other_sites_can_read_nothing(allowing: Any, origin: str) -> None:
    for answer in (ask(allowing, "OPTIONS", origin, **PREFLIGHT), ask(allowing, "POST", origin)):
        assert answer.status_code in (401, 403, 405)
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_by_default_no_other_site_can_read_anything(server: Any) -> None:
    answer = ask(server, "OPTIONS", SITE, **PREFLIGHT)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_the_same_sites_may_open_websockets(serve: Any) -> None:
    with serve(cors_origin=[SITE]) as server:
        with connect(url_of(server), additional_headers={"Origin": SITE}, proxy=None) as allowed:
            assert Client(allowed).turn()["status"] == "completed"
        with pytest.raises(InvalidStatus):
            connect(url_of(server), additional_headers={"Origin": OTHER}, proxy=None)


def test_streams_have_the_headers_too(serve: Any) -> None:
    body = {"model": "scripted-chat", "input": "hi", "stream": True}
    with (
        serve(cors_origin=[SITE]) as server,
        httpx.stream(
            "POST", f"{server.api}/responses", json=body, headers={"origin": SITE}
        ) as answer,
    ):
        assert answer.headers["access-control-allow-origin"] == SITE
        assert "response.completed" in "".join(answer.iter_text())
