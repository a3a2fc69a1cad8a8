"""Nothing is answered without an API key but what orchestrators ask, whatever a path looks like."""

from __future__ import annotations

import http.client
import inspect
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from litestar.types import ASGIApp
from tests.http.conftest import create, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from antiphon.adapters.keys.file import append
from antiphon.application.ports import ApiKey
from antiphon.application.resources.keys import FindCaller, create_key
from antiphon.application.support.tasks import current_tenant
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.entrypoints.http.access.auth import PUBLIC, Authentication
from antiphon.entrypoints.http.access.identity import BearerIdentity
from antiphon.entrypoints.http.app import create_app

BASE = {"model": "scripted-chat", "input": "hi"}
REVOKED_WITHIN_S = 20.0
"""Five seconds, and what a busy machine takes."""

_ids = iter(range(10_000))


def new_key(file: Path, tenant: str = "t", policy: KeyPolicy = FULL_ACCESS) -> str:
    key, kept = create_key(
        "test", tenant, policy=policy, new_id=lambda p: f"{p}_{next(_ids)}", now=lambda: 0
    )
    append(file, kept)
    return key


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def key(keys_file: Path) -> str:
    return new_key(keys_file)


@pytest.fixture(scope="module")
def guarded(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
    keys_file: Path,
    key: str,
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("guarded")
    with serve_from(folder, auth="on", keys_file=keys_file, store="sqlite") as server:
        yield server


def asked(server: Any, method: str, target: str, **headers: str) -> tuple[int, Any, bytes]:
    """Send the target as it is, which no proper client does, and return what is answered."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.putrequest(method, target, skip_host="host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def refused(status: int, headers: Any, body: bytes) -> str:
    """Check that nobody was let in, and return what was said."""
    assert status == 401, body
    assert headers["www-authenticate"] == "Bearer"
    assert headers["x-request-id"]
    error: dict[str, Any] = json.loads(body)["error"]
    if error["type"] == "authentication_error":  # of the Messages API
        assert set(error) == {"message", "type"}
        return str(error["message"])
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert error["param"] is None
    return str(error["message"])


# --- keys -----------------------------------------------------------------------------------------


def test_a_key_opens_the_api(guarded: Any, key: str) -> None:
    with httpx.Client(base_url=guarded.api, headers=bearer(key), timeout=10) as client:
        created = create(client, **BASE)
        assert client.get(f"/responses/{created['id']}").json() == created


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
def test_the_scheme_is_read_as_http_wants_it(guarded: Any, key: str, scheme: str) -> None:
    headers = {"authorization": f"{scheme} {key}"}
    assert httpx.get(f"{guarded.api}/models", headers=headers).status_code == 200


def test_a_request_without_a_key_is_refused_with_advice(guarded: Any) -> None:
    answer = httpx.post(f"{guarded.api}/responses", json=BASE)
    message = refused(answer.status_code, answer.headers, answer.content)
    assert message.endswith("'Authorization: Bearer KEY'.")


def test_a_wrong_key_is_not_repeated(guarded: Any, caplog: pytest.LogCaptureFixture) -> None:
    answer = httpx.post(f"{guarded.api}/responses", json=BASE, headers=bearer("ak-canary"))
    message = refused(answer.status_code, answer.headers, answer.content)
    assert message == "Incorrect API key provided."
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        "{key}",
        "Basic {key}",
        "Bearer{key}",
        "Bearer: {key}",
        "Bearer {key} {key}",
        "Bearer {key},",
        "Bearer {key}\t",
        'Bearer "{key}"',
        "Bearer {cut}",
        "Bearer {lower}",
        "Bearer ' OR 1=1 --",
        "Bearer \xff\xfe",
        "Bearer %00",
        "Bearer " + "a" * 10_000,
    ],
)
def test_a_malformed_key_is_refused(guarded: Any, key: str, given: str) -> None:
    value = given.format(key=key, cut=key[:-1], lower=key.lower())
    refused(*asked(guarded, "GET", "/v1/models", authorization=value))


def test_two_keys_in_one_request_are_refused(guarded: Any, key: str) -> None:
    headers = [("authorization", f"Bearer {key}")] * 2
    answer = httpx.get(f"{guarded.api}/models", headers=headers)
    refused(answer.status_code, answer.headers, answer.content)


@pytest.mark.parametrize("name", ["api_key", "x_api_key", "cookie", "proxy_authorization"])
def test_a_key_is_in_no_other_header(guarded: Any, key: str, name: str) -> None:
    refused(*asked(guarded, "GET", "/v1/models", **{name: f"Bearer {key}"}))
    refused(*asked(guarded, "GET", f"/v1/models?api_key={key}&authorization=Bearer%20{key}"))


def test_a_request_without_a_key_is_refused_before_its_body_is_read(guarded: Any) -> None:
    where = urlsplit(guarded.url)
    assert where.hostname
    with socket.create_connection((where.hostname, where.port), timeout=5) as sock:
        head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
        sock.sendall(head)
        assert sock.recv(12) == b"HTTP/1.1 401"


def test_the_dialect_of_a_refusal_is_the_clients_choice(guarded: Any) -> None:
    _, _, body = asked(guarded, "GET", "/v1/models", x_antiphon_dialect="open-responses")
    assert json.loads(body)["error"]["type"] == "invalid_request"


# --- paths ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def routes(guarded: Any) -> list[str]:
    """The path of every route there is, with its parameters filled in."""
    made = guarded.app
    # Only its routes are looked at: what no service has the name of may be anything.
    needed = inspect.signature(create_app).parameters
    app = create_app(**{name: getattr(made, name, 0) for name in needed})
    parts = (
        ["x" if part.startswith("{") else part for part in route.path.split("/")]
        for route in app.routes
    )
    paths = sorted({"/".join(each) for each in parts})
    assert {"/v1/responses", "/v1/files/x/content", "/schema", "/health/live"} <= set(paths)
    return paths


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "DELETE", "PUT", "PATCH")


def test_every_route_needs_a_key_but_the_public_ones(guarded: Any, routes: list[str]) -> None:
    for path in routes:
        for method in METHODS:
            status, headers, body = asked(guarded, method, path)
            if path == "/":
                assert status in (200, 204, 405), (method, path, body)
            elif path == "/console/session" and method in ("POST", "DELETE"):
                assert status == 401, body  # from another site's page, as far as it tells
            elif path in PUBLIC:
                assert status in (200, 204, 405), (method, path, body)
            elif method == "HEAD":
                assert (status, body) == (401, b""), path
            else:
                refused(status, headers, body)


MUTATIONS = (
    "/{}",
    "//{}",
    "{}/",
    "{}//",
    "/.{}",
    "/%2e{}",
    "/x/..{}",
    "/health/live{}",
    "/health/live/..{}",
    "/health/live/../..{}",
    "/health/live/%2e%2e/%2e%2e{}",
    "/health/live%2f..%2f..{}",
    "/health/live;{}",
    "/health/live%3b{}",
    "/health/live%00{}",
    "/health/live%0a{}",
    "/health/live%23{}",
    "/health/live%3f{}",
    "{};/health/live",
    "{};x=/health/live",
    "{}?/health/live",
    "{}#/health/live",
    "{}%3f/health/live",
    "{}%00",
    "{}%20",
    "{}%2f",
    "{}/.",
    "{}/x/..",
    "{}/../../health/live",
    "{}/%2e%2e/%2e%2e/health/live",
    "http://x{}",
    "http://x/health/live{}",
    "http://x/health/live?{}",
    "http://x/health/live#{}",
    "http://x/health/live@y{}",
    "http://health/live{}",
    "\\health\\live\\..{}",
)


def spelled(path: str) -> Iterator[str]:
    """Yield other spellings of a path."""
    yield path.upper()
    yield path.replace("/v1", "/V1")
    yield path.replace("/v1", "/%76%31")
    yield path.replace("/v1", "/v1/")
    yield path.replace("/", "%2f")
    yield path.replace("/", "%252f")
    yield path.replace("/", "\\")
    yield path.replace("e", "%65")


def test_no_spelling_of_a_path_gets_past_the_key(guarded: Any, routes: list[str]) -> None:
    for path in set(routes) - PUBLIC:
        for target in [each.format(path) for each in MUTATIONS] + list(spelled(path)):
            is_public = target.partition("?")[0].partition("#")[0] in {
                *PUBLIC,
                *(f"http://x{public}" for public in PUBLIC),
            }
            for method in ("GET", "POST"):
                status, _, body = asked(guarded, method, target)
                if is_public:  # then nothing but the public page is answered
                    assert status in (200, 405), (method, target, body)
                    assert b"live" in body or status == 405, (method, target, body)
                else:
                    assert status in (400, 401), (method, target, body)


HOSTS = (
    "a/health/live?",
    "a/health/live#",
    "a/health/live",
    "health/live@a",
    "a\\health\\live",
    "a b",
    "a,b/",
    "[::1",
    "[/health/live]",
    "a:b",
    "a:80:80",
    "a:65536",
    "[::1]:99999",
    "[1.2.3.4]",
    "[:::]",
    "[.]",
    "a?",
    "a#",
    "ä",
)


@pytest.mark.parametrize("host", HOSTS)
def test_a_malformed_host_is_refused_with_and_without_a_key(
    guarded: Any, key: str, host: str
) -> None:
    named = host.encode().decode("latin-1")
    for path in ("/v1/models", "/health/live", "/schema"):
        for headers in ({}, bearer(key)):
            status, _, body = asked(guarded, "GET", path, host=named, **headers)
            assert status == 400, body
            assert json.loads(body)["error"]["message"] == "The header 'Host' is malformed."


@pytest.mark.parametrize("host", ["x", "x.example:8080", "127.0.0.1", "[::1]:80", "a_b", ""])
def test_a_host_of_any_name_is_let_in_with_a_key(guarded: Any, key: str, host: str) -> None:
    refused(*asked(guarded, "GET", "/v1/models", host=host))
    assert asked(guarded, "GET", "/v1/models", host=host, **bearer(key))[0] == 200


@pytest.mark.parametrize(
    "header",
    [
        "x_forwarded_host",
        "x_forwarded_prefix",
        "x_forwarded_uri",
        "x_original_url",
        "x_original_uri",
        "x_rewrite_url",
        "x_http_method_override",
        "forwarded",
    ],
)
def test_no_header_can_change_the_path(guarded: Any, header: str) -> None:
    refused(*asked(guarded, "GET", "/v1/models", **{header: "/health/live"}))


# --- WebSockets -----------------------------------------------------------------------------------


def joined(server: Any, path: str = "/v1/responses", **headers: str) -> ClientConnection:
    url = server.url.replace("http", "ws", 1) + path
    return connect(url, additional_headers=headers, max_size=None, proxy=None)


@pytest.mark.parametrize("headers", [{}, bearer("ak-wrong"), {"authorization": "Basic x"}])
def test_a_websocket_without_a_key_is_refused_in_its_handshake(
    guarded: Any, headers: dict[str, str]
) -> None:
    for path in ("/v1/responses", "/v1/responses/"):
        with pytest.raises(InvalidStatus) as told:
            joined(guarded, path, **headers)
        answer = told.value.response
        refused(answer.status_code, answer.headers, bytes(answer.body or b""))


def test_a_websocket_with_a_key_is_answered(guarded: Any, key: str) -> None:
    with joined(guarded, **bearer(key)) as connection:
        connection.send(json.dumps({"type": "response.create", **BASE}))
        kinds = [json.loads(connection.recv(timeout=30))["type"]]
        while kinds[-1] != "response.completed":
            kinds.append(json.loads(connection.recv(timeout=30))["type"])
    assert kinds[0] == "response.created"


# --- revoking -------------------------------------------------------------------------------------


@pytest.mark.one_process
def test_a_new_key_is_accepted_and_a_revoked_key_is_refused(guarded: Any, keys_file: Path) -> None:
    before = keys_file.read_text()
    made = new_key(keys_file)

    def status() -> int:
        return httpx.get(f"{guarded.api}/models", headers=bearer(made)).status_code

    assert status() == 200
    with joined(guarded, **bearer(made)) as connection:
        keys_file.write_text(before)
        wait_until(lambda: status() == 401, REVOKED_WITHIN_S)
        connection.send(json.dumps({"type": "response.create", **BASE}))
        with pytest.raises(ConnectionClosed) as told:
            connection.recv(timeout=30)
    assert told.value.rcvd is not None
    assert (told.value.rcvd.code, told.value.rcvd.reason) == (1008, "The API key was revoked.")


# --- where no key can be found --------------------------------------------------------------------


async def _broken(_hash: bytes) -> ApiKey | None:
    raise StoreError("could not connect to 10.1.2.3")


@pytest.fixture
def behind() -> Callable[[FindCaller | None], httpx.AsyncClient]:
    """An app behind a door, without a server."""

    async def hello(scope: Any, _receive: Any, send: Any) -> None:
        body = current_tenant().encode() if "auth" in scope else b"None"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def behind(find_caller: FindCaller | None) -> httpx.AsyncClient:
        app: ASGIApp = hello
        identities = None if find_caller is None else [BearerIdentity(find_caller, None)]
        door: Any = Authentication(app, identities)
        return httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://x")

    return behind


async def test_a_store_that_fails_is_no_wrong_key(behind: Any) -> None:
    async with behind(FindCaller([_broken])) as client:
        answer = await client.get("/v1/models", headers=bearer("ak-x"))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "server_error"
        assert "10.1.2.3" not in answer.text
        assert (await client.get("/health/live")).status_code == 200


async def test_without_keys_all_requests_belong_to_one_tenant(behind: Any) -> None:
    async with behind(None) as client:
        for headers in ({}, bearer("none"), {"authorization": "Basic x"}):
            assert (await client.get("/v1/models", headers=headers)).text == "default"


async def test_what_a_request_does_is_work_of_its_tenant(behind: Any) -> None:
    shown, key = create_key("test", "acme", new_id=lambda p: f"{p}_1", now=lambda: 0)

    async def find(_hash: bytes) -> ApiKey:
        return key

    async with behind(FindCaller([find])) as client:
        assert (await client.get("/v1/models", headers=bearer(shown))).text == "acme"


def test_a_server_that_others_reach_does_not_start_without_a_key(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    with (
        pytest.raises(SettingsError, match="antiphon keys create --name me"),
        serve(host="0.0.0.0", store="sqlite"),
    ):
        pass
    with (
        pytest.raises(SettingsError, match=r"--file keys\.toml.* or turn .* --auth off"),
        serve(host="0.0.0.0"),
    ):
        pass


def test_a_server_that_cannot_get_a_key_does_not_start_without_one(
    serve: Callable[..., Any],
) -> None:
    said = r"`antiphon keys create --name me --file keys\.toml` and start .* --keys-file keys\.toml"
    with pytest.raises(SettingsError, match=said), serve(auth="on", store="memory"):
        pass


def test_a_keys_file_that_cannot_be_used_stops_the_start(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="cannot be used"), serve(keys_file=tmp_path / "no"):
        pass
