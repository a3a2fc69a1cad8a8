"""Clients cannot fill the log with errors, and no cache keeps what the API answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from tests.http.conftest import wait_until
from tests.security.support.raw_clients import (
    HANDSHAKE,
    HANGING,
    HEAD,
    STREAM,
    TEXT,
    close_code,
    connect,
    frame,
    post,
    read_until_closed,
    reset,
    websocket,
)

CREATE = json.dumps({**HANGING, "type": "response.create"}).encode()
FORM = (
    b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: multipart/form-data; boundary=b\r\n"
    b"content-length: 100000\r\n\r\n--b\r\n"
    b'content-disposition: form-data; name="file"; filename="a"\r\n\r\nabc'
)


@pytest.fixture
def quiet(server: Any, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """A server whose log has no line for what its clients do wrong, at the end of the test."""
    with caplog.at_level(logging.INFO):
        yield server
        wait_until(lambda: len(server.app.transport.connections) == 0)
        assert httpx.get(f"{server.url}/livez").status_code == 200
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    # The watchdog of the event loop may say that this machine is busy.
    bad = [r for r in records if r.levelno >= logging.WARNING and r.name != "antiphon.loop"]
    assert [record.getMessage() for record in bad] == []


def test_a_refused_handshake_is_no_error_of_the_server(quiet: Any) -> None:
    with connect(quiet) as connection:
        connection.sendall(HANDSHAKE + b"origin: https://evil.example\r\n\r\n")
        assert read_until_closed(connection).startswith(b"HTTP/1.1 403")


def test_a_malformed_request_is_no_warning(quiet: Any) -> None:
    with connect(quiet) as connection:
        connection.sendall(b"\x16\x03\x01\r\n\r\n")
        assert read_until_closed(connection).startswith(b"HTTP/1.1 400")


def test_text_that_is_not_utf8_is_no_error_of_the_server(quiet: Any) -> None:
    with websocket(quiet) as connection:
        connection.sendall(frame(TEXT, b"\xff\xfe"))
        assert close_code(read_until_closed(connection)) == 1007


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD,
        HEAD + b"content-length: 100000\r\n\r\n{",
        FORM,
        post(HANGING),
        post({**HANGING, "stream": False}),
        HANDSHAKE + b"\r\n",
        HANDSHAKE + b"\r\n" + frame(TEXT, b"{}", length=100_000),
        HANDSHAKE + b"\r\n" + frame(TEXT, CREATE),
    ],
)
def test_a_reset_is_no_error_of_the_server(quiet: Any, sent: bytes) -> None:
    for _ in range(3):
        connection = connect(quiet)
        connection.sendall(sent)
        connection.settimeout(0.05)
        with suppress(TimeoutError):
            connection.recv(100)
        reset(connection)


def test_too_many_requests_before_an_answer_are_refused(server: Any) -> None:
    with connect(server) as connection:
        connection.sendall(post(HANGING) + b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000)
        assert b"HTTP/1.1 400" in read_until_closed(connection)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/models"),
        ("GET", "/responses/resp_unknown"),
        ("GET", "/nowhere"),
        ("PUT", "/responses"),
        ("POST", "/responses"),
        ("GET", "/files"),
        ("GET", "/vector_stores"),
        ("POST", "/conversations"),
        ("DELETE", "/conversations/conv_unknown"),
        ("GET", "/containers"),
    ],
)
def test_no_answer_of_the_api_may_be_cached(server: Any, method: str, path: str) -> None:
    answer = httpx.request(method, f"{server.api}{path}")
    assert answer.headers["cache-control"] == "no-store"


def test_no_stream_may_be_cached(server: Any) -> None:
    body = {**STREAM, "input": "hi"}
    with httpx.stream("POST", f"{server.api}/responses", json=body) as answer:
        assert answer.headers["cache-control"] == "no-cache, no-store"


def test_no_refusal_without_a_key_may_be_cached(serve: Any) -> None:
    with serve(auth="on", store="sqlite") as server:
        assert httpx.get(f"{server.api}/models").headers["cache-control"] == "no-store"
