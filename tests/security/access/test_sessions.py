"""Sessions of the console: a cookie is worth its credential, and no other site can use it."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from tests.http.conftest import wait_until
from tests.security.support.certificates import write_certificate
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from antiphon.adapters.keys.file import append
from antiphon.adapters.sealing import Sealer
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import RequestError
from antiphon.entrypoints.http.console.sessions import (
    COOKIE,
    SEALED_FOR,
    SESSION_S,
    Session,
    Sessions,
)

pytestmark = pytest.mark.slow

SAME = {"sec-fetch-site": "same-origin", "sec-fetch-dest": "empty"}
BASE = {"model": "scripted-chat", "input": "hi"}


def new_key(file: Path, tenant: str) -> str:
    key, kept = create_key(f"of-{tenant}", tenant, new_id=lambda p: f"{p}_{tenant}", now=lambda: 0)
    append(file, kept)
    return key


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def keys(keys_file: Path) -> dict[str, str]:
    return {tenant: new_key(keys_file, tenant) for tenant in ("blue", "red", "green")}


@pytest.fixture(scope="module")
def guarded(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
    keys_file: Path,
    keys: dict[str, str],
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("console")
    with serve_from(folder, auth="on", keys_file=keys_file, store="sqlite") as server:
        yield server


@pytest.fixture
def browser(guarded: Any) -> Iterator[httpx.Client]:
    """What sends the headers of a browser on the console's page, and keeps its cookies."""
    with httpx.Client(base_url=guarded.url, headers=SAME, timeout=15) as client:
        yield client


def sign_in(browser: httpx.Client, key: str) -> httpx.Response:
    return browser.post("/console/session", json={"key": key})


def cookie_of(browser: httpx.Client) -> str:
    value = browser.cookies.get(COOKIE)
    assert value
    return value


def refused(answer: httpx.Response) -> str:
    assert answer.status_code == 401, answer.text
    message: str = answer.json()["error"]["message"]
    return message


# --- signing in and out ---


def test_a_session_opens_the_api_as_its_key_does(
    browser: httpx.Client, keys: dict[str, str]
) -> None:
    assert browser.get("/console/session").json() == {
        "needed": True, "valid": False, "key": None, "tenant": None,
    }  # fmt: skip
    signed_in = sign_in(browser, keys["blue"])
    assert signed_in.json() == {
        "needed": True, "valid": True, "key": "of-blue", "tenant": "blue",
    }  # fmt: skip
    assert browser.get("/console/session").json() == signed_in.json()
    created = browser.post("/v1/responses", json=BASE).json()
    assert browser.get(f"/v1/responses/{created['id']}").json() == created
    with_key = {"authorization": f"Bearer {keys['blue']}"}
    path = f"{browser.base_url}/v1/responses/{created['id']}"
    assert httpx.get(path, headers=with_key).json() == created


def test_the_cookie_is_for_no_script_and_no_other_site(
    browser: httpx.Client, keys: dict[str, str]
) -> None:
    written = sign_in(browser, keys["blue"]).headers["set-cookie"]
    attributes = {part.strip().lower() for part in written.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={SESSION_S}"} <= attributes
    assert "secure" not in attributes, "a browser would drop it without TLS"
    https = {"origin": f"https://{urlsplit(str(browser.base_url)).netloc}"}
    body = {"key": keys["blue"]}
    behind_proxy = browser.post("/console/session", json=body, headers=https)
    assert "secure" in behind_proxy.headers["set-cookie"].lower()
    assert keys["blue"] not in written


def test_the_cookie_is_secure_over_tls(
    serve: Any, tmp_path: Path, keys_file: Path, keys: dict[str, str]
) -> None:
    certificate, private = write_certificate(tmp_path, "console")
    trust_all = ssl.create_default_context()
    trust_all.check_hostname, trust_all.verify_mode = False, ssl.CERT_NONE
    settings = {"auth": "on", "keys_file": keys_file}
    with (
        serve(tls_cert=certificate, tls_key=private, **settings) as server,
        httpx.Client(base_url=server.url, headers=SAME, verify=trust_all) as client,
    ):
        assert "; Secure" in sign_in(client, keys["blue"]).headers["set-cookie"]
        assert client.get("/v1/models").status_code == 200


def test_a_server_with_the_same_seal_key_knows_the_session(
    serve: Any, keys_file: Path, keys: dict[str, str]
) -> None:
    settings = {"auth": "on", "keys_file": keys_file}
    with serve(**settings) as one, serve(**settings) as other:
        with httpx.Client(base_url=one.url, headers=SAME) as client:
            sign_in(client, keys["blue"])
            cookie = {**SAME, "cookie": f"{COOKIE}={cookie_of(client)}"}
        assert httpx.get(f"{other.api}/models", headers=cookie).status_code == 200


def test_a_session_may_do_what_its_key_may(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    policy = KeyPolicy(scopes=("read",))
    key, kept = create_key("reader", "blue", new_id=str, now=lambda: 0, policy=policy)
    append(file, kept)
    with (
        serve(auth="on", keys_file=file) as server,
        httpx.Client(base_url=server.url, headers=SAME) as client,
    ):
        sign_in(client, key)
        assert client.get("/v1/responses").status_code == 200
        assert client.post("/v1/responses", json=BASE).status_code == 403


def test_signing_out_removes_the_cookie(browser: httpx.Client, keys: dict[str, str]) -> None:
    sign_in(browser, keys["blue"])
    assert browser.delete("/console/session").json()["valid"] is False
    assert COOKIE not in browser.cookies
    assert "API key" in refused(browser.get("/v1/models"))


@pytest.mark.parametrize("body", ["", "{}", "[]", '{"key": 3}', '{"key": null}', "\xff", "{"])
def test_a_sign_in_without_a_key_is_refused(browser: httpx.Client, body: str) -> None:
    answer = browser.post("/console/session", content=body.encode("latin-1"))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "key"
    assert browser.post("/console/session", content=b"x" * 100_000).status_code == 413


def test_a_wrong_key_is_refused_and_never_repeated(
    browser: httpx.Client, keys: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = sign_in(browser, "ak-canary")
        assert refused(answer) == "Incorrect API key provided."
        assert COOKIE not in browser.cookies
        sign_in(browser, keys["blue"])
        cookie = cookie_of(browser)
        browser.get("/v1/models")
    ours = (each for each in caplog.records if each.name.startswith(("antiphon", "uvicorn")))
    logged = "\n".join(str(vars(each)) + each.getMessage() for each in ours)
    assert "/console/session" in logged
    assert "canary" not in logged + answer.text
    assert keys["blue"] not in logged
    assert cookie not in logged


# --- who may use a cookie ---


def test_a_tampered_cookie_is_refused(browser: httpx.Client, keys: dict[str, str]) -> None:
    sign_in(browser, keys["blue"])
    value = cookie_of(browser)
    swapped = "A" if value[40] != "A" else "B"
    for wrong in ("", "x", value[:-8], value[:40] + swapped + value[41:]):
        with httpx.Client(base_url=browser.base_url, headers=SAME) as other:
            answer = other.get("/v1/models", headers={"cookie": f"{COOKIE}={wrong}"})
            assert "session" in refused(answer)


def test_a_second_cookie_is_refused(browser: httpx.Client, keys: dict[str, str]) -> None:
    sign_in(browser, keys["blue"])
    blue = cookie_of(browser)
    browser.cookies.clear()
    both = {"cookie": f"{COOKIE}={blue}; {COOKIE}={blue}"}
    refused(browser.get("/v1/models", headers=both))


def test_what_is_sealed_for_a_tenant_is_no_session(guarded: Any, keys: dict[str, str]) -> None:
    text = json.dumps([keys["blue"], 2**40])
    for tenant in ("blue", "default", "console"):
        value = guarded.container.sealer().seal(tenant, text)
        headers = {**SAME, "cookie": f"{COOKIE}={value}"}
        refused(httpx.get(f"{guarded.api}/models", headers=headers))


def test_tenants_are_apart(browser: httpx.Client, keys: dict[str, str]) -> None:
    sign_in(browser, keys["blue"])
    created = browser.post("/v1/responses", json=BASE).json()
    sign_in(browser, keys["red"])
    assert browser.get(f"/v1/responses/{created['id']}").status_code == 404
    assert browser.get("/v1/responses").json()["data"] == []
    assert browser.get("/console/session").json()["tenant"] == "red"


def test_a_key_in_the_request_wins_over_the_cookie(
    browser: httpx.Client, keys: dict[str, str]
) -> None:
    sign_in(browser, keys["blue"])
    created = browser.post("/v1/responses", json=BASE).json()
    with_key = {"authorization": f"Bearer {keys['red']}"}
    assert browser.get(f"/v1/responses/{created['id']}", headers=with_key).status_code == 404


FORGED: tuple[tuple[dict[str, str], int], ...] = (
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site"}, 403),  # another port of the same host
    ({"sec-fetch-site": "none"}, 401),
    ({"sec-fetch-site": "cross-site", "origin": "OWN"}, 403),
    ({"origin": "https://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({}, 401),
)
"""What is no page of the console, and with which status it is refused: a page of another site
may not call the server at all."""


@pytest.mark.parametrize(("sent", "status"), FORGED)
def test_another_site_cannot_use_the_session(
    browser: httpx.Client, keys: dict[str, str], sent: dict[str, str], status: int
) -> None:
    sign_in(browser, keys["blue"])
    headers = {"cookie": f"{COOKIE}={cookie_of(browser)}", **sent}
    url = str(browser.base_url).rstrip("/")
    if headers.get("origin") == "OWN":
        headers["origin"] = url
    for method, path in (
        ("POST", "/v1/responses"),
        ("DELETE", "/v1/responses/resp_x"),
        ("POST", "/console/session"),
        ("DELETE", "/console/session"),
    ):
        body = {"key": keys["red"]} if path.startswith("/console") else BASE
        answer = httpx.request(method, url + path, headers=headers, json=body)
        assert answer.status_code == status, (method, path, answer.text)
        assert "set-cookie" not in answer.headers


def test_an_old_browser_is_known_by_its_origin(browser: httpx.Client, keys: dict[str, str]) -> None:
    sign_in(browser, keys["blue"])
    url = str(browser.base_url).rstrip("/")
    headers = {"cookie": f"{COOKIE}={cookie_of(browser)}", "origin": url}
    assert httpx.post(f"{url}/v1/responses", headers=headers, json=BASE).status_code == 200
    del headers["origin"]
    assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("shown_as", ["document", "script", "image", "iframe", "worker", "style"])
def test_a_session_shows_nothing_that_a_browser_would_run(
    browser: httpx.Client, keys: dict[str, str], shown_as: str
) -> None:
    sign_in(browser, keys["blue"])
    file = browser.post("/v1/files", files={"file": ("a.js", b"1")}, data={"purpose": "user_data"})
    path = f"/v1/files/{file.json()['id']}/content"
    assert browser.get(path).content == b"1"
    refused(browser.get(path, headers={"sec-fetch-dest": shown_as}))


def test_a_websocket_needs_the_pages_origin(
    guarded: Any, browser: httpx.Client, keys: dict[str, str]
) -> None:
    sign_in(browser, keys["blue"])
    cookie = {"cookie": f"{COOKIE}={cookie_of(browser)}"}
    url = guarded.api.replace("http", "ws", 1) + "/responses"
    with connect(url, additional_headers={**cookie, "origin": guarded.url}) as socket:
        socket.send(json.dumps({"type": "response.create", **BASE}))
        assert json.loads(socket.recv(timeout=15))["type"] == "response.created"
    refusals = (({}, 401), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403))
    for wrong, status in refusals:
        with (
            pytest.raises(InvalidStatus) as caught,
            connect(url, additional_headers={**cookie, **wrong}),
        ):
            raise AssertionError("it was opened")
        assert caught.value.response.status_code == status


# --- the end of a session ---


def test_a_revoked_key_ends_its_sessions(
    browser: httpx.Client, keys_file: Path, keys: dict[str, str]
) -> None:
    sign_in(browser, keys["green"])
    assert browser.get("/v1/models").status_code == 200
    text = keys_file.read_text(encoding="utf-8")
    keys_file.write_text(text[: text.rindex("[[")], encoding="utf-8")  # green was added last
    wait_until(lambda: browser.get("/v1/models").status_code == 401)
    assert browser.get("/console/session").json()["valid"] is False


def test_a_session_ends_after_eight_hours(tmp_path: Path) -> None:
    times = iter([1000.0, 1000.0 + SESSION_S - 1, 1000.0 + SESSION_S])
    sealer = Sealer(tmp_path / "seal.key")
    sessions = Sessions(sealer.seal, sealer.unseal, now=lambda: next(times))
    value = sessions.create("ak-x")
    assert sessions.credential_of(value) == "ak-x"
    assert sessions.credential_of(value) is None


def test_an_expired_cookie_is_refused(guarded: Any, keys: dict[str, str]) -> None:
    ended = msgspec.json.encode(Session(keys["blue"], 1.0)).decode()
    value = guarded.container.sealer().seal(SEALED_FOR, ended)
    answer = httpx.get(f"{guarded.api}/models", headers={**SAME, "cookie": f"{COOKIE}={value}"})
    refused(answer)


def test_a_token_that_no_browser_would_keep_is_refused(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "seal.key")
    with pytest.raises(RequestError, match="too long"):
        Sessions(sealer.seal, sealer.unseal, now=lambda: 0.0).create("x" * 4000)


# --- pages ---


def test_the_console_can_be_switched_off(serve: Any) -> None:
    with serve(console=False) as server:
        for path in ("/console", "/console/assets/app.js", "/console/session"):
            assert httpx.get(server.url + path).status_code == 404


def test_without_keys_there_is_no_session(server: Any) -> None:
    session = httpx.get(f"{server.url}/console/session").json()
    assert session == {"needed": False, "valid": True, "key": "", "tenant": "default"}
