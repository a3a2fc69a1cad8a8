"""Tokens over HTTP and WebSockets, beside API keys."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, wait_until
from tests.security.support.issuer import AUDIENCE, Issuer, SigningKey, issuing
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.server.first_key import first_key_command
from antiphon.entrypoints.settings import load

pytestmark = pytest.mark.slow

BASE = {"model": "scripted-chat", "input": "hi"}
EXPIRES_WITHIN_S = 20.0


def bearer(credential: str) -> dict[str, str]:
    return {"authorization": f"Bearer {credential}"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def key_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A keys file, and a way to add a key for a tenant to it."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"

    def add(tenant: str) -> str:
        key, record = create_key("k", tenant, new_id=lambda p: f"{p}_{tenant}", now=time.time)
        append(file, record)
        return key

    add("first")
    add.file = file  # type: ignore[attr-defined]
    return add


@pytest.fixture(scope="module")
def guarded(
    serve_from: Any, tmp_path_factory: pytest.TempPathFactory, issuer: Issuer, key_of: Any
) -> Iterator[Any]:
    options = {
        "oidc.issuer": issuer.url,
        "oidc.audience": [AUDIENCE],
        "oidc.leeway_s": "0",
        "keys_file": key_of.file,
        "store": "sqlite",
    }
    with serve_from(tmp_path_factory.mktemp("guarded"), **options) as server:
        yield server


def test_a_token_opens_the_objects_of_its_tenant_and_no_others(
    guarded: Any, issuer: Issuer
) -> None:
    with httpx.Client(base_url=guarded.api, timeout=20) as client:
        client.headers.update(bearer(issuer.token(sub="anna")))
        created = create(client, **BASE)
        path = f"/responses/{created['id']}"
        assert client.get(path).status_code == 200
        other = bearer(issuer.token(sub="bob"))
        assert client.get(path, headers=other).status_code == 404


def test_the_tenant_of_a_key_is_not_the_one_that_a_token_names(
    guarded: Any, issuer: Issuer, key_of: Any
) -> None:
    with httpx.Client(base_url=guarded.api, timeout=20) as client:
        client.headers.update(bearer(key_of("anna")))
        path = f"/responses/{create(client, **BASE)['id']}"
        assert client.get(path).status_code == 200
        assert client.get(path, headers=bearer(issuer.token(sub="anna"))).status_code == 404
        key = key_of("oidc-anna")
        assert client.get(path, headers=bearer(key)).status_code == 404


@pytest.mark.parametrize(
    ("credential", "code", "challenge"),
    [
        ("ak-wrong", "invalid_api_key", "Bearer"),
        ("eyJhbGciOiJub25lIn0.e30", "invalid_api_key", "Bearer"),
        (
            "eyJhbGciOiJub25lIn0.e30.",
            "invalid_token",
            'Bearer error="invalid_token", error_description="The token is signed with an '
            'algorithm that is not allowed."',
        ),
    ],
)
def test_the_form_of_a_credential_decides_who_refuses_it(
    guarded: Any, credential: str, code: str, challenge: str
) -> None:
    answer = httpx.get(f"{guarded.api}/models", headers=bearer(credential))
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == code
    assert answer.headers["www-authenticate"] == challenge


def test_the_line_of_a_request_names_the_subject_of_its_token(
    guarded: Any, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    httpx.get(f"{guarded.api}/models", headers=bearer(issuer.token(sub="anna")))
    wait_until(lambda: "key=anna" in caplog.text)  # the line comes after the answer


def test_a_token_is_in_no_log_and_no_answer(
    guarded: Any, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    forger = SigningKey("first", "ES256")
    for token in (
        issuer.token(sub="anna", email="canary"),
        issuer.token(sub="canary", exp=1),
        issuer.token(sub="canary canary"),
        forger.sign(issuer.claims(sub="canary"), {"kid": "canary"}),
    ):
        answer = httpx.get(f"{guarded.api}/models", headers=bearer(token))
        said = answer.text + str(answer.headers) + caplog.text
        assert "canary" not in said
        assert not any(part in said for part in token.split("."))


def test_a_token_of_any_length_is_answered(guarded: Any, issuer: Issuer) -> None:
    for size in (4000, 5000, 8000, 30_000):
        token = issuer.token(sub="anna", filler="f" * size)
        status = httpx.get(f"{guarded.api}/models", headers=bearer(token)).status_code
        assert status == (200 if len(token) <= 8192 else 401), len(token)


def test_a_websocket_ends_when_its_token_has_expired(guarded: Any, issuer: Issuer) -> None:
    token = issuer.token(exp=int(time.time()) + 3)
    url = guarded.url.replace("http", "ws", 1) + "/v1/responses"

    def is_refused() -> bool:
        return httpx.get(f"{guarded.api}/models", headers=bearer(token)).status_code == 401

    with connect(url, additional_headers=bearer(token), proxy=None) as connection:
        connection.send(json.dumps({"type": "response.create", **BASE}))
        assert json.loads(connection.recv(timeout=30))["type"] == "response.created"
        wait_until(is_refused, EXPIRES_WITHIN_S)
        connection.send(json.dumps({"type": "response.create", **BASE}))
        with pytest.raises(ConnectionClosed) as ended:
            while True:
                connection.recv(timeout=30)
    assert ended.value.rcvd is not None
    assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (1008, "The token has expired.")


def test_an_issuer_that_is_down_is_no_wrong_token(
    serve: Callable[..., Any], issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.is_down = True
    try:
        with serve(**{"oidc.issuer": issuer.url, "oidc.audience": [AUDIENCE]}) as server:
            for _ in range(20):
                answer = httpx.get(f"{server.api}/models", headers=bearer(issuer.token()))
                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "1"
                assert issuer.url not in answer.text
            assert httpx.get(f"{server.url}/livez").status_code == 200
    finally:
        issuer.is_down = False
    assert caplog.text.count("could not be fetched to verify tokens") == 1


# --- starting -------------------------------------------------------------------------------------


def test_a_server_with_an_issuer_needs_no_key_to_start(
    serve: Callable[..., Any], issuer: Issuer
) -> None:
    options = {"oidc.issuer": issuer.url, "oidc.audience": [AUDIENCE]}
    with serve(host="0.0.0.0", **options) as server:
        assert httpx.get(f"{server.api}/models").status_code == 401
        headers = bearer(issuer.token())
        assert httpx.get(f"{server.api}/models", headers=headers).status_code == 200
    container = Container(settings=load(None, {}, {"auth": "on", "store": "memory", **options}))
    assert asyncio.run(first_key_command(container)) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"oidc.issuer": "https://a.example"}, "oidc.issuer needs oidc.audience"),
        ({"oidc.audience": ["a"]}, "oidc.audience needs oidc.issuer"),
        (
            {"oidc.issuer": "https://a.example", "oidc.audience": ["a"], "auth": "off"},
            "nobody is asked who they are",
        ),
        (
            {
                "oidc.issuer": "https://a.example",
                "oidc.audience": ["a"],
                "oidc.ca_file": Path("no.pem"),
            },
            "oidc.ca_file 'no.pem' cannot be used",
        ),
        ({"trusted_proxy.addresses": ["127.0.0.1"], "auth": "off"}, "nobody is asked"),
        ({"trusted_proxy.secret": "0123456789abcdef"}, "needs trusted_proxy.addresses"),
    ],
)
def test_settings_that_leave_a_hole_stop_the_start(
    serve: Callable[..., Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence), serve(**options):
        pass
