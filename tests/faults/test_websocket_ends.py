"""WebSocket connections that end badly: the engine is freed, and everybody else is served."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

pytestmark = pytest.mark.slow

LAST = ("response.completed", "response.incomplete", "response.failed")
LONG = '@@script [[{"say": "word ", "repeat": 10000, "tick": 0.02}]]'
SHORT = '@@script [[{"say": "word ", "repeat": 20, "tick": 0.02}]]'
ENDLESS = '@@script [[{"say": "word ", "repeat": 100000}]]'
MODEL = "scripted-chat"


def url_of(server: Any) -> str:
    return f"{server.api}/responses".replace("http", "ws", 1)


def message(asked: str, **fields: Any) -> str:
    return json.dumps({"type": "response.create", "model": MODEL, "input": asked, **fields})


def until(connection: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads(connection.recv(timeout=30))
        if event["type"] == kind:
            return event


def wait_until(holds: Callable[[], bool], shown: Callable[[], str] = str) -> None:
    """Look again and again; say what `shown` gives if it does not happen."""
    never, deadline = threading.Event(), time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, f"it did not happen in time: {shown()}"
        never.wait(0.005)


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("politely", [True, False])
def test_a_client_that_leaves_ends_its_runs(serve: Any, store: bool, politely: bool) -> None:
    with serve() as server:
        engine = server.engine(MODEL)
        connection = connect(url_of(server), proxy=None).__enter__()  # ended by hand
        for lane in ("a", "b"):
            connection.send(message(LONG, store=store, stream_id=lane))
            connection.send(message("waits behind it", store=store, stream_id=lane))
        response_id = until(connection, "response.created")["response"]["id"]
        wait_until(lambda: engine.running == 2)
        if politely:
            connection.close()
        else:
            connection.socket.shutdown(socket.SHUT_RDWR)
        wait_until(
            lambda: engine.aborted == 2,
            lambda: f"{engine.begun=} {engine.running=} {engine.aborted=}",
        )
        wait_until(lambda: len(server.app.runs.active) == 0)
        assert (engine.running, engine.begun) == (0, 2), "what waits never begins"
        if store:
            get = server.app.services.get
            assert asyncio.run(get("default", response_id)).status == "cancelled"


@pytest.mark.parametrize(
    ("asked", "graceful_s", "status"), [(SHORT, 10, "completed"), (LONG, 0, "failed")]
)
def test_a_server_that_stops_ends_what_runs_and_then_closes(
    serve: Any, asked: str, graceful_s: int, status: str
) -> None:
    received: list[dict[str, Any]] = []
    codes: list[int] = []
    begun = threading.Barrier(2, timeout=10)

    def read(url: str, given: str | None) -> None:
        with connect(url, proxy=None) as connection:
            if given is not None:
                connection.send(message(given))
                connection.send(message("waits"))
                until(connection, "response.output_text.delta")
            begun.wait()
            try:
                while True:
                    received.append(json.loads(connection.recv(timeout=30)))
            except ConnectionClosed as closed:
                assert closed.rcvd is not None
                codes.append(closed.rcvd.code)

    readers = []
    with serve(graceful_shutdown_s=graceful_s) as server:
        for given in (asked, None):
            readers.append(threading.Thread(target=read, args=(url_of(server), given)))
            readers[-1].start()
            begun.wait()
    for reader in readers:
        reader.join(timeout=30)
    assert codes == [1012, 1012]
    waited = [event for event in received if event["type"] == "error" and "status" in event]
    assert [event["status"] for event in waited] == [503]
    assert received[-1]["response"]["status"] == status


async def test_a_reader_that_does_not_read_slows_nobody_else(serve: Any) -> None:
    with serve() as server:
        stalled = []
        for _ in range(3):
            connection = await connect_async(url_of(server), max_queue=1, proxy=None)
            await connection.send(message(ENDLESS, store=False))
            stalled.append(connection)
        async with connect_async(url_of(server), proxy=None) as quick:
            await quick.send(message("hi"))
            events = [json.loads(await quick.recv())]
            while events[-1]["type"] not in LAST:
                events.append(json.loads(await quick.recv()))
        assert events[-1]["type"] == "response.completed"
        for connection in stalled:
            connection.transport.abort()
        runs = server.app.runs.active
        async with asyncio.timeout(30):
            while len(runs):
                await asyncio.to_thread(threading.Event().wait, 0.005)
        assert server.engine(MODEL).running == 0


HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
    b"connection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def shaken(server: Any) -> socket.socket:
    """Return a connection that is upgraded, and whose client does nothing by itself."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(HANDSHAKE)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return connection


def masked(text: str) -> bytes:
    """Return a text frame as clients send it, with a mask of zeros."""
    data = text.encode()
    assert 125 < len(data) < 65536
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data


def test_a_silent_connection_is_pinged(serve: Any) -> None:
    with serve(keepalive_s=0.1) as server, shaken(server) as connection:
        assert connection.recv(2) == b"\x89\x04"


def test_a_client_that_neither_reads_nor_answers_pings_is_let_go(serve: Any) -> None:
    with serve(keepalive_s=0.2) as server, shaken(server) as connection:
        asked = ENDLESS.replace("]]", ', {"hang": 60}]]')
        connection.sendall(masked(message(asked, store=False)))
        engine = server.engine(MODEL)
        wait_until(lambda: engine.begun == 1)
        wait_until(lambda: engine.aborted == 1)


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff\xff\xff\xff", b"\x81\x05hello", b"\x83\x80\0\0\0\0", b"\x81\x82\0\0\0\0\xff\xff"],
)
def test_rubbish_closes_the_connection_and_nothing_else(server: Any, rubbish: bytes) -> None:
    with shaken(server) as connection:
        connection.sendall(rubbish)
        assert connection.recv(1) == b"\x88"
        while connection.recv(4096):
            pass
    with connect(url_of(server), proxy=None) as good:
        good.send(message("hi"))
        assert until(good, "response.completed")


@pytest.mark.parametrize("length", [0, 10, len(HANDSHAKE) - 2])
def test_a_handshake_that_never_arrives_is_ended(serve: Any, length: int) -> None:
    with serve(arrival_s=0.2) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(HANDSHAKE[:length])
            assert connection.recv(12) == b"HTTP/1.1 408"
