"""Clients that send too much, too slowly or not at all have a defined end, and cost little."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import httpx
import pytest

from antiphon.entrypoints.http.wire.protocol import MAX_HEAD_BYTES

pytestmark = pytest.mark.slow


def connect(server: Any) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def answer_to(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def test_a_head_without_end_is_refused_before_it_costs_memory(server: Any) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-long: ")
        sent, most = 0, 2000 * MAX_HEAD_BYTES  # far more than the sockets' own buffers hold
        with suppress(BrokenPipeError, ConnectionResetError):
            while sent < most:
                sent += connection.send(b"a" * 65536)
    assert sent < most
    assert httpx.get(f"{server.api}/models").status_code == 200


def test_a_head_that_is_a_little_too_long_is_told_so(server: Any) -> None:
    with connect(server) as connection:
        head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-long: " + b"a" * MAX_HEAD_BYTES
        connection.sendall(head)
        answer = answer_to(connection)
    assert answer.startswith(b"HTTP/1.1 431")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 100\r\n\r\n{",
    ],
)
def test_a_request_that_never_arrives_is_ended(serve: Any, begun: bytes) -> None:
    with serve(arrival_s=0.2) as server, connect(server) as connection:
        connection.sendall(begun)
        assert answer_to(connection).startswith(b"HTTP/1.1 408")


def test_a_request_that_is_refused_early_has_one_answer(serve: Any) -> None:
    begun = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"
    with serve(arrival_s=0.2) as server, connect(server) as connection:
        connection.sendall(begun)
        answer = answer_to(connection)
    assert answer.startswith(b"HTTP/1.1 415")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_slow_answer_is_not_a_slow_request(serve: Any) -> None:
    with serve(arrival_s=1) as server:
        asked = '@@script [[{"hang": 1.5}, {"say": "late"}]]'
        body = {"model": "scripted-chat", "input": asked}
        answer = httpx.post(f"{server.api}/responses", json=body)
    assert answer.status_code == 200


def test_rubbish_is_a_400(server: Any) -> None:
    with connect(server) as connection:
        connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        head, _, body = answer_to(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_reader_that_does_not_read_slows_nobody_else(server: Any) -> None:
    asked = '@@script [[{"say": "word ", "repeat": 20000}]]'
    body = {"model": "scripted-chat", "input": asked, "stream": True, "store": False}
    raw = json.dumps(body).encode()
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    host, port = server.url.removeprefix("http://").split(":")
    stalled = []
    for _ in range(5):
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(head.encode() + raw)
        await writer.drain()
        stalled.append(writer)
    async with httpx.AsyncClient(base_url=server.api, timeout=30) as client:
        answer = await client.post("/responses", json={"model": "scripted-chat", "input": "hi"})
        assert answer.status_code == 200
    for writer in stalled:
        writer.close()
