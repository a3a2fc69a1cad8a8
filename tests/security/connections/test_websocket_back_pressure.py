"""A WebSocket is read only as fast as its messages are answered; the rest waits at the client."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from tests.http.wire.websocket_client import LAST, Client, url_of
from tests.security.support.attacker import NICENESS
from tests.security.support.other_tenant import MAX_WAIT_S, client_of, make_keys
from tests.security.support.raw_clients import TEXT, frame, websocket
from tests.security.support.server_probe import BUSY_FACTOR, probe_server
from websockets.sync.client import connect

from antiphon.application.websocket.lanes import LaneLimits

SOCKETS = int(os.environ.get("ANTIPHON_TEST_MUTE_SOCKETS", "128"))
FLOOD_S = float(os.environ.get("ANTIPHON_TEST_FLOOD_S", "6"))
MAX_GROWTH_BYTES = 200 * 1024 * 1024
MAX_FREEZE_S = 0.25
"""For busy machines; on an idle one it is 25 ms."""
IN_THE_KERNEL = 8 * 1024 * 1024
"""More than it keeps of what the server has not read."""

CREATE = {"type": "response.create", "model": "scripted-chat", "input": "hi", "store": False}
MESSAGE = frame(TEXT, json.dumps(CREATE).encode())


class Flood:
    """Sends the same bytes over a connection, again and again."""

    def __init__(self, connection: Any, data: bytes) -> None:
        self.sent = 0
        self._connection = connection
        self._data = data
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        # As if it were another machine: it must not delay what the test measures.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        with suppress(OSError):
            while True:
                self._connection.sendall(self._data)
                self.sent += len(self._data)

    def stop(self) -> None:
        with suppress(OSError):  # the server has closed it
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()


@contextmanager
def flooded(connections: list[Any], data: bytes) -> Iterator[list[Flood]]:
    """Send over all connections until the block ends, which closes them."""
    floods = [Flood(connection, data) for connection in connections]
    try:
        yield floods
    finally:
        for flood in floods:
            flood.stop()


def test_a_client_waits_that_sends_faster_than_it_is_answered(server: Any) -> None:
    connection = websocket(server)
    with flooded([connection], MESSAGE * 500) as (flood,):
        received = b""
        answers = 0
        while answers < 200:
            received = received[-30:] + connection.recv(65536)
            answers += received.count(b'"type":"response.completed"')
        assert flood.sent < IN_THE_KERNEL


def test_messages_that_were_sent_at_once_are_answered_in_order(server: Any) -> None:
    with connect(url_of(server), proxy=None) as connection:
        client = Client(connection)
        for number in range(40):
            client.ask(store=False, metadata={"number": str(number)})
        answered = [client.until(*LAST)[-1]["response"]["metadata"]["number"] for _ in range(40)]
    assert answered == [str(number) for number in range(40)]


def test_a_pong_may_wait_behind_messages_that_are_refused(serve: Any) -> None:
    with (
        serve(keepalive_s=0.05) as server,
        connect(url_of(server), proxy=None, ping_interval=None) as connection,
    ):
        client = Client(connection)
        client.ask('@@script [[{"say": "now"}, {"hang": 30}]]', stream_id="one")
        client.until("response.output_text.delta")
        fits = LaneLimits().max_waiting
        for _ in range(fits + 10):  # each one too many keeps the server from reading for a moment
            client.ask(stream_id="one")
        assert [client.error()["status"] for _ in range(10)] == [429] * 10


@pytest.mark.faults
@pytest.mark.parametrize(("sockets", "reads"), [(1, True), (SOCKETS, False)])
def test_a_flood_of_requests_does_not_fill_the_memory(
    tmp_path: Path, sockets: int, reads: bool
) -> None:
    keys, options = make_keys(tmp_path)
    headers = f"authorization: Bearer {keys['greedy']}\r\n".encode()
    with (
        probe_server(tmp_path, "--store", "memory", *options) as server,
        client_of(server, keys["other"]) as client,
    ):
        _wait_s(client)  # what is done once
        usual = [_wait_s(client) for _ in range(20)]
        connections = [websocket(server, headers=headers) for _ in range(sockets)]
        with server.watch(give_back_s=0) as attack, flooded(connections, MESSAGE * 1000):
            reader = threading.Thread(target=_read, args=connections, daemon=True)
            if reads:
                reader.start()
            end = time.monotonic() + FLOOD_S
            waits = []
            while time.monotonic() < end:
                waits.append(_wait_s(client))
    print(f"another tenant: {max(usual) * 1000:.0f} -> {max(waits) * 1000:.0f} ms at most")
    assert attack.peak_growth_bytes < MAX_GROWTH_BYTES
    assert attack.freeze_s < attack.limit(MAX_FREEZE_S)
    assert median(waits) < max(attack.limit(MAX_WAIT_S), BUSY_FACTOR * median(usual))


def _wait_s(client: httpx.Client) -> float:
    """Return how long a short request takes."""
    started_at = time.perf_counter()
    body = {"model": "scripted-chat", "input": "hi", "store": False}
    assert client.post("/responses", json=body).status_code == 200
    return time.perf_counter() - started_at


def _read(connection: Any) -> None:
    with suppress(OSError):
        while connection.recv(1 << 20):
            pass
