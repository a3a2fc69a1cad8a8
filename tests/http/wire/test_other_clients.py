"""What other servers answer, too: HEAD, HTTP/1.0, offers of other protocols, and odd spellings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.access.test_limits import Keys
from tests.http.conftest import create, frames
from tests.http.wire.websocket_client import Client
from tests.security.support.raw_clients import HEAD, connect, read_answer, read_until_closed
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_websocket

BODY = {"model": "scripted-chat", "input": "hi there"}


@pytest.fixture(scope="module")
def keys(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    folder = tmp_path_factory.mktemp("others")
    file = folder / "keys.toml"
    file.touch()
    with serve_from(folder, auth="on", keys_file=file, store="sqlite", metrics=True) as server:
        yield Keys(file, server)


# --- HEAD -----------------------------------------------------------------------------------------


PATHS = (
    "/",
    "/livez",
    "/readyz",
    "/health",
    "/health/live",
    "/health/ready",
    "/schema",
    "/schema/openapi.json",
    "/v1/models",
    "/v1/models/scripted-chat",
    "/v1/models/nothing",
    "/v1/responses",
    "/v1/responses/{id}",
    "/v1/responses/{id}/input_items",
    "/v1/responses/resp_none",
    "/v1/files",
    "/v1/conversations",
    "/nowhere",
)
CHANGING = {"x-request-id", "date"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.one_process
def test_head_has_the_status_and_the_headers_of_get(
    server: Any, http: httpx.Client, path: str
) -> None:
    path = path.format(id=create(http, **BODY)["id"]) if "{" in path else path
    get, head = (httpx.request(method, server.url + path) for method in ("GET", "HEAD"))
    assert head.status_code == get.status_code
    assert head.content == b""
    for name in {*get.headers, *head.headers} - CHANGING:
        assert head.headers.get(name) == get.headers.get(name), name


def test_head_of_a_stream_ends_with_its_headers(http: httpx.Client) -> None:
    created = create(http, **BODY)
    answer = http.head(f"/responses/{created['id']}?stream=true")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert http.get("/models").status_code == 200  # on the same connection


def test_head_needs_the_rights_of_get(keys: Keys) -> None:
    url = f"{keys.server.api}/responses"
    assert httpx.head(url).status_code == 401
    for scopes, status in ((("read",), 200), (("metrics",), 403)):
        headers = {"authorization": f"Bearer {keys.create(scopes=scopes)}"}
        assert httpx.head(url, headers=headers).status_code == status


def test_health_needs_no_key(keys: Keys) -> None:
    answers = [httpx.get(f"{keys.server.url}{path}") for path in ("/health", "/readyz")]
    assert answers[0].status_code == 200
    assert answers[0].json() == answers[1].json()


# --- HTTP/1.0 -------------------------------------------------------------------------------------


def send(server: Any, request: bytes) -> tuple[bytes, bytes]:
    """Return the head and the rest of what is received until the connection is closed."""
    with connect(server) as connection:
        connection.sendall(request)
        head, _, body = read_until_closed(connection).partition(b"\r\n\r\n")
    return head.lower(), body


def request_of(body: dict[str, Any], *headers: str, version: str = "1.1") -> bytes:
    raw = json.dumps(body).encode()
    lines = [
        f"POST /v1/responses HTTP/{version}",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


@pytest.mark.parametrize("connection", [[], ["Connection: keep-alive"]])
def test_a_stream_to_http_1_0_ends_with_its_connection(server: Any, connection: list[str]) -> None:
    head, body = send(server, request_of({**BODY, "stream": True}, *connection, version="1.0"))
    assert head.startswith(b"http/1.1 200")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    events = frames(body.decode())
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("path", ["/schema", "/v1/models", "/console", "/nowhere"])
def test_http_1_0_gets_the_bytes_of_http_1_1(server: Any, path: str) -> None:
    head, body = send(server, f"GET {path} HTTP/1.0\r\n\r\n".encode())
    expected = httpx.get(server.url + path)
    assert head.split()[1] == str(expected.status_code).encode()
    assert body == expected.content


def test_an_answer_to_http_1_0_has_its_length(server: Any) -> None:
    head, body = send(server, request_of(BODY, version="1.0"))
    assert f"content-length: {len(body)}".encode() in head
    assert json.loads(body)["status"] == "completed"


# --- offers of other protocols --------------------------------------------------------------------


OFFERS = (
    ("Connection: Upgrade", "Upgrade: h2c"),
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    ("Connection: upgrade", "upgrade: TLS/1.3"),
    ("Connection: keep-alive, Upgrade", "Upgrade: foo/2, websocket"),
    ("Connection: Upgrade", "Upgrade: websocket"),
    ("Connection: Upgrade", "Upgrade: foo", "Upgrade: bar"),
)


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("step", [1_000_000, 7])
def test_an_offer_of_another_protocol_costs_no_body(
    server: Any, offer: tuple[str, ...], step: int
) -> None:
    request = request_of(BODY, *offer)
    with connect(server) as connection:
        for _ in range(2):  # the connection goes on as it was
            for at in range(0, len(request), step):
                connection.sendall(request[at : at + step])
            head, body = read_answer(connection)
            assert head.startswith(b"HTTP/1.1 200"), head
            assert json.loads(body)["output"][0]["content"][0]["text"].endswith("hi there")


def test_offers_in_a_pipeline_are_answered_in_order(server: Any) -> None:
    texts = [f"number {n}" for n in range(5)]
    requests = [request_of({**BODY, "input": text}, *OFFERS[1]) for text in texts]
    chunked = (
        HEAD + b"upgrade: x\r\nconnection: close, upgrade\r\n"
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    )
    last = json.dumps({**BODY, "input": "the last one"}).encode()
    _, body = send(server, b"".join(requests) + chunked % (len(last), last))
    answered = re.findall(rb"(number \d|the last one)\"", body)
    assert list(dict.fromkeys(answered)) == [*(text.encode() for text in texts), b"the last one"]


@pytest.mark.parametrize("method", ["CONNECT", "GET"])
def test_a_request_for_a_tunnel_is_refused(server: Any, method: str) -> None:
    request = (
        f"{method} a:80 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n"
    )
    head, _ = send(server, request.encode())
    assert re.match(rb"http/1.1 4\d\d", head)


# --- spellings of the WebSocket's path ------------------------------------------------------------

SPELLINGS = (
    "/v1/responses",
    "//v1/responses",
    "/v1//responses//",
    "/v1/responses/",
    "/v1%2Fresponses",
    "/v1/resp%6Fnses",
)


@pytest.mark.parametrize("path", SPELLINGS)
def test_a_websocket_opens_however_its_path_is_spelled(keys: Keys, path: str) -> None:
    url = keys.server.url.replace("http", "ws") + path + "?a=b"
    headers = {"authorization": f"Bearer {keys.create()}"}
    with open_websocket(url, additional_headers=headers, proxy=None) as connection:
        assert Client(connection).turn()["status"] == "completed"
    for wrong, status in (({}, 401), ({"scopes": ("read",)}, 403)):
        key = {"authorization": f"Bearer {keys.create(**wrong)}"} if wrong else {}
        with pytest.raises(InvalidStatus) as refused:
            open_websocket(url, additional_headers=key, proxy=None)
        assert refused.value.response.status_code == status
