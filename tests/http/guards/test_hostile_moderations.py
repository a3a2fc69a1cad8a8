"""A moderations API that fails in any way: nothing passes, or all does, as the operator says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest
from tests.http.conftest import frames, script
from tests.support.machine_speed import slowness
from tests.support.moderation_server import FakeModerations, moderating, result_for

pytestmark = pytest.mark.slow

SAID = "I know that the word is xyzzy, and that this is all that there is to say."
SHOWN = SAID.replace("xyzzy", "")
TIMEOUT_S = 0.5
Request = BaseHTTPRequestHandler


def send(status: int, body: bytes, **headers: str) -> Callable[[Request], None]:
    def write(request: Request) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return write


def send_pieces(piece: bytes, pause_s: float) -> Callable[[Request], None]:
    """Send the piece again and again, until nobody reads it any longer."""

    def write(request: Request) -> None:
        request.send_response(200)
        request.send_header("content-type", "application/json")
        request.end_headers()
        ends_at = time.monotonic() + 20
        with suppress(OSError):
            while time.monotonic() < ends_at:
                request.wfile.write(piece)
                request.wfile.flush()
                time.sleep(pause_s)

    return write


def close(request: Request) -> None:
    request.close_connection = True


def answer(results: list[Any], **more: Any) -> bytes:
    return json.dumps({"id": "modr-1", "results": results, **more}).encode()


FINE = result_for("Fine.")

FAULTS: Mapping[str, Callable[[Request], None]] = {
    "an error": send(500, b"{}"),
    "an error that says that it is fine": send(500, answer([FINE])),
    "too many requests": send(429, b"{}", retry_after="3600"),
    "no right": send(401, b"{}"),
    "a redirect": send(307, answer([FINE]), location="/v1/moderations"),
    "a redirect inward": send(302, answer([FINE]), location="http://169.254.169.254/"),
    "no content": send(204, b""),
    "no JSON": send(200, b"fine"),
    "other JSON": send(200, b"[true]"),
    "no results": send(200, answer([])),
    "too many results": send(200, answer([FINE] * 40)),
    "half a result": send(200, answer([{"flagged": False}])[:-3]),
    "a text for a truth": send(200, answer([{**FINE, "flagged": "no"}])),
    "no truth": send(200, answer([{**FINE, "flagged": None}])),
    "nested lists": send(200, b"[" * 500_000),
    "a huge body": send(200, answer([FINE], padding="x" * 40_000_000)),
    "a body without end": send_pieces(b" " * 65536, 0),
    "drops": send_pieces(b" ", 0.02),
    "silence": send_pieces(b"", 0.1),
    "a closed connection": close,
}


@pytest.fixture(scope="module")
def moderations() -> Iterator[FakeModerations]:
    with moderating() as fake:
        yield fake


@pytest.fixture(scope="module")
def servers(
    moderations: FakeModerations, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, httpx.Client]]:
    """By what happens if a guard fails, a client of a server."""
    with ExitStack() as stack:
        clients = {}
        for failure in ("closed", "open"):
            given = {
                "guard": ["moderation"],
                "guards.window": 10_000,
                "guards.timeout_s": TIMEOUT_S,
                "guards.failure": failure,
                "moderation.url": moderations.url,
                "moderation.place": ["output"],
            }
            folder = tmp_path_factory.mktemp(failure)
            server = stack.enter_context(serve_from(folder, **given))
            client = httpx.Client(base_url=server.api, timeout=30)
            clients[failure] = stack.enter_context(client)
        yield clients


@pytest.mark.parametrize("failure", ["closed", "open"])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_api_that_fails_ends_in_time_as_the_operator_says(
    servers: Mapping[str, httpx.Client], moderations: FakeModerations, fault: str, failure: str
) -> None:
    body = {"model": "scripted-chat", "input": script({"say": SAID}), "stream": True}
    moderations.write = FAULTS[fault]
    started_at = time.monotonic()
    try:
        text = servers[failure].post("/responses", json={**body, "include": ["metrics"]}).text
    finally:
        moderations.write = None
    assert time.monotonic() - started_at < (3 + 4 * TIMEOUT_S) * slowness()
    written = "".join(event["delta"] for event in frames(text) if "delta" in event)
    response = frames(text)[-1]["response"]
    if failure == "closed":
        assert written == ""
        assert response["status"] == "failed"
        assert "The guard 'moderation' of this server failed" in response["error"]["message"]
    else:
        assert (written, response["status"]) == (SAID, "completed")
        assert "failed" in [each["verdict"] for each in response["metrics"]["guards"]]


def test_the_server_goes_on_with_an_api_that_works_again(
    servers: Mapping[str, httpx.Client],
) -> None:
    for client in servers.values():
        for said in (SHOWN, SAID):
            body = {"model": "scripted-chat", "input": script({"say": said}), "stream": True}
            response = frames(client.post("/responses", json=body).text)[-1]["response"]
            assert response["status"] == "completed"
            assert ("xyzzy" in json.dumps(response["output"])) is False
