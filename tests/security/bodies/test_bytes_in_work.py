"""The bytes of all requests in work are bounded, not only those of each."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import wait_until
from tests.security.support.raw_clients import (
    HEAD,
    TEXT,
    close_code,
    connect,
    frame,
    read_answer,
    read_until_closed,
    websocket,
)
from tests.security.support.server_probe import MAX_GROWTH_BYTES, probe_server

BODIES = int(os.environ.get("ANTIPHON_TEST_UNFINISHED_BODIES", "60"))
BODY_BYTES = 30_000_000
SPACES = b" " * 300_000
LARGE = {"max_work_bytes": 1_000_000}
"""Each tenant may use half of it, which is less than twice `SPACES`."""


def incoming(server: Any) -> int:
    total: int = server.app.bytes_in_work.total
    return total


def send_unfinished(connection: Any) -> None:
    connection.sendall(HEAD + b"content-length: 400000\r\n\r\n" + SPACES)


def test_unfinished_bodies_have_a_limit_in_all(serve: Any) -> None:
    with serve(**LARGE) as server, ExitStack() as stack:
        first, second = (stack.enter_context(connect(server)) for _ in range(2))
        send_unfinished(first)
        wait_until(lambda: incoming(server) == len(SPACES))
        send_unfinished(second)
        head, body = read_answer(second)
        assert head.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in head
        assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
        first.close()
        wait_until(lambda: incoming(server) == 0)


def test_unfinished_messages_count_too(serve: Any) -> None:
    with serve(**LARGE) as server, ExitStack() as stack:
        first, second = (stack.enter_context(websocket(server)) for _ in range(2))
        first.sendall(frame(TEXT, SPACES, length=400_000))
        wait_until(lambda: incoming(server) == len(SPACES))
        second.sendall(frame(TEXT, SPACES, fin=False))
        assert close_code(read_until_closed(second)) == 1013
        first.close()
        wait_until(lambda: incoming(server) == 0)


def test_bodies_that_were_decoded_do_not_count(serve: Any) -> None:
    body = {"model": "scripted-chat", "input": "hi " * 130_000, "store": False}
    with serve(**LARGE) as server:
        for _ in range(3):
            answer = httpx.post(f"{server.api}/responses", json=body, timeout=30)
            assert answer.status_code in (200, 400), answer.text
        with websocket(server) as connection:
            asked = json.dumps({"type": "response.create", **body}).encode()
            connection.sendall(frame(TEXT, asked))
            assert connection.recv(10)
            wait_until(lambda: incoming(server) == 0)
        assert incoming(server) == 0


@pytest.mark.faults
def test_unfinished_bodies_do_not_fill_the_memory(tmp_path: Path) -> None:
    part = b" " * 1_000_000
    options = ("--store", "memory", "--max-work-bytes", "100000000")
    with probe_server(tmp_path, *options) as server:
        with server.watch() as attack, ExitStack() as stack:
            for _ in range(BODIES):
                body, message = (
                    stack.enter_context(connect(server)),
                    stack.enter_context(websocket(server)),
                )
                with suppress(ConnectionError):
                    body.sendall(HEAD + b"content-length: %d\r\n\r\n" % (BODY_BYTES + 1))
                    for _ in range(BODY_BYTES // len(part)):
                        body.sendall(part)
                with suppress(ConnectionError):
                    message.sendall(frame(TEXT, length=BODY_BYTES + 1))
                    for _ in range(BODY_BYTES // len(part)):
                        message.sendall(part)
        assert attack.peak_growth_bytes < 100_000_000 + MAX_GROWTH_BYTES
        assert attack.growth_bytes < MAX_GROWTH_BYTES
