"""What a newcomer meets: a page at `/`, the API's page without a network, and signposts."""

from __future__ import annotations

import html
import json
import re
import shlex
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MODEL = "secret-model"
ELSEWHERE = re.compile(r"""(src|href)=["']?(https?:)?//|@import|url\(|<script|<link|<img|<iframe""")


@pytest.fixture(scope="module")
def guarded(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that asks for keys, and has a model that is nobody's business without one."""
    folder = tmp_path_factory.mktemp("guarded")
    _, kept = create_key("reader", "default", new_id=new_id, now=time.time)
    append(folder / "keys.toml", kept)
    with serve_from(
        folder,
        auth="on",
        keys_file=folder / "keys.toml",
        model="scripted-chat",
        served_model_name=[MODEL],
    ) as server:
        yield server


def page(url: str) -> str:
    answer = httpx.get(url, headers=BROWSER)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not ELSEWHERE.search(answer.text)
    return answer.text


def error(answer: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["type"] == "invalid_request_error"
    found: dict[str, Any] = body["error"]
    return found


# --- the first page -------------------------------------------------------------------------------


def test_a_browser_gets_a_page_about_the_server_and_its_models(server: Any) -> None:
    text = page(f"{server.url}/")
    for told in ("Responses API", f"{server.api}<", "scripted-harmony", 'href="/schema"'):
        assert told in text


def test_the_request_on_the_first_page_works_as_it_is(server: Any) -> None:
    shown = re.search(r"<pre>(curl .*?)</pre>", page(f"{server.url}/"))
    assert shown is not None
    _, url, *_, body = shlex.split(html.unescape(shown[1]))
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"})
    assert answer.json()["status"] == "completed"


def test_every_link_of_the_first_page_leads_somewhere(server: Any) -> None:
    for path in re.findall(r'href="([^"]+)"', page(f"{server.url}/")):
        assert httpx.get(f"{server.url}{path}").status_code == 200


def test_the_first_page_names_no_models_if_keys_are_needed(guarded: Any) -> None:
    text = page(f"{guarded.url}/")
    assert "antiphon keys create" in text
    assert "Bearer $OPENAI_API_KEY" in text
    for secret in (MODEL, "scripted"):
        assert secret not in text


def test_the_host_header_is_escaped_on_the_page(guarded: Any) -> None:
    answer = httpx.get(f"{guarded.url}/", headers={**BROWSER, "host": "a'&b"})
    assert "http://a&#39;&amp;b/v1" in answer.text


# --- the API's page -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/schema", "/schema/"])
def test_the_page_of_the_api_needs_no_network_and_no_key(guarded: Any, path: str) -> None:
    text = page(f"{guarded.url}{path}")
    for told in ("POST /v1/responses", "ErrorResponse", "previous_response_id", "Needs no API key"):
        assert told in text
    assert MODEL not in text


def test_every_link_within_the_page_of_the_api_has_its_place(server: Any) -> None:
    text = page(f"{server.url}/schema")
    places = re.findall(r'id="([^"]+)"', text)
    assert len(places) == len(set(places))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(places)


@pytest.mark.parametrize("path", ["/schema/openapi.json", "/schema/openapi.yaml"])
def test_the_document_needs_no_key(guarded: Any, path: str) -> None:
    answer = httpx.get(f"{guarded.url}{path}")
    assert answer.status_code == 200
    assert MODEL not in answer.text


# --- signposts ------------------------------------------------------------------------------------

DOCUMENTED = "GET /schema documents the API, GET /schema/openapi.json is the OpenAPI document."
API = (
    "This is the Responses API: POST /v1/responses creates a response, GET /v1/models lists the "
    f"models. {DOCUMENTED}"
)
PREFIX = "Paths begin with /v1: set the base URL to {api}."


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("GET", "/v1", API),
        ("POST", "/v1", API),
        ("GET", "/docs", DOCUMENTED),
        ("GET", "/openapi.json", DOCUMENTED),
        ("POST", "/chat/completions", PREFIX),
        ("POST", "/completions", PREFIX),
        ("POST", "/responses", PREFIX),
        ("GET", "/models", PREFIX),
        ("GET", "/api/v1/models", PREFIX),
        (
            "POST",
            "/v1/v1/responses",
            "The path has /v1 twice: remove it from either the base URL or the path.",
        ),
        ("GET", "/v1/assistants", DOCUMENTED),
    ],
)
def test_an_unknown_path_is_refused_with_a_hint(
    server: Any, method: str, path: str, hint: str
) -> None:
    answer = httpx.request(method, f"{server.url}{path}")
    assert answer.status_code == 404
    assert error(answer)["message"] == f"Invalid URL ({method} {path}). " + hint.format(
        api=server.api
    )


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_a_client_that_asks_for_no_page_reads_where_the_api_is(server: Any, accept: str) -> None:
    answer = httpx.get(server.url, headers={"accept": accept})
    assert (answer.status_code, answer.json()["name"]) == (200, "antiphon")
    assert answer.json()["message"] == API


def test_a_method_that_a_path_does_not_take_is_named(server: Any) -> None:
    answer = httpx.put(f"{server.api}/responses")
    assert answer.status_code == 405
    assert error(answer)["message"] == (
        f"Invalid method for this URL (PUT /v1/responses). {DOCUMENTED}"
    )


def test_a_missing_object_keeps_its_own_error(server: Any) -> None:
    answer = httpx.get(f"{server.api}/responses/resp_none")
    assert answer.status_code == 404
    assert "resp_none" in error(answer)["message"]
    assert "/schema" not in error(answer)["message"]


def test_little_of_a_long_path_is_repeated(server: Any) -> None:
    answer = httpx.get(f"{server.url}/{'x' * 20_000}")
    assert len(json.dumps(error(answer))) < 600
