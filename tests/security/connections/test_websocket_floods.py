"""A WebSocket cannot keep the server busy with frames that start nothing."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.http.conftest import wait_until
from tests.http.wire.websocket_client import Client, url_of
from tests.security.support.raw_clients import (
    PING,
    PONG,
    TEXT,
    close_code,
    frame,
    read_until_closed,
    websocket,
)
from tests.security.support.server_probe import MAX_GROWTH_BYTES, probe_server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from antiphon.entrypoints.http.wire.frame_queue import FrameBudget, FrameQueue, frame_length

SOCKETS = int(os.environ.get("ANTIPHON_TEST_FLOOD_SOCKETS", "100"))
MAX_FLOOD_FREEZE_S = 1.5
"""For busy machines; on an idle one it is 10 ms. Without turns it was 5 s for so many sockets."""
JUNK = frame(TEXT, b'{"type": "junk"}')
CREATE = {"type": "response.create", "model": "scripted-chat", "input": "hi", "store": False}


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING) * 1000,
        frame(PONG) * 1000,
        JUNK * 1000,
        frame(TEXT, b'{"', fin=False) + frame(0x0, b"a", fin=False) * 1000,
    ],
    ids=["pings", "pongs", "junk", "fragments"],
)
def test_a_flood_closes_its_connection(server: Any, flood: bytes) -> None:
    with websocket(server) as connection:
        with suppress(ConnectionError):
            connection.sendall(flood)
        assert close_code(read_until_closed(connection)) == 1008


def test_requests_one_after_another_are_no_flood(server: Any) -> None:
    with connect(url_of(server), proxy=None) as connection:
        client = Client(connection)
        for _ in range(100):
            assert client.turn(store=False)["status"] == "completed"


def test_a_large_message_in_many_frames_is_no_flood(server: Any) -> None:
    body = json.dumps({**CREATE, "input": "hi " * 100_000}).encode()
    parts = [body[at : at + 1024] for at in range(0, len(body), 1024)]
    with connect(url_of(server), proxy=None) as connection:
        connection.send(part.decode() for part in parts)
        assert Client(connection).until("response.completed", "response.incomplete", "error")


def test_a_message_may_arrive_byte_by_byte(server: Any) -> None:
    with websocket(server) as connection:
        for byte in frame(PING) + frame(TEXT, json.dumps(CREATE).encode()):
            connection.sendall(bytes([byte]))
        received = b""
        while b"response.completed" not in received:
            received += connection.recv(65536)


def test_a_tenant_may_open_so_many_connections_and_no_more(serve: Any) -> None:
    with serve(websockets_per_tenant=2) as server:
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(connect(url_of(server), proxy=None))
            with pytest.raises(InvalidStatus) as refused:
                connect(url_of(server), proxy=None)
        answer = refused.value.response
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"

        def opens() -> bool:
            with suppress(InvalidStatus), connect(url_of(server), proxy=None):
                return True
            return False

        wait_until(opens)


@pytest.mark.faults
def test_a_flood_on_many_connections_does_not_stop_the_server(tmp_path: Path) -> None:
    options = ("--store", "memory", "--websockets-per-tenant", str(SOCKETS))
    with probe_server(tmp_path, *options) as server, ExitStack() as stack:
        connections = [stack.enter_context(websocket(server)) for _ in range(SOCKETS)]
        with server.watch() as attack:
            floods = (frame(PING) * 30_000, JUNK * 3_000)
            _at_once([(each, floods[n % 2]) for n, each in enumerate(connections)])
            for connection in connections:
                read_until_closed(connection)
    assert attack.freeze_s < attack.limit(MAX_FLOOD_FREEZE_S)
    assert attack.growth_bytes < MAX_GROWTH_BYTES


def _at_once(sends: Sequence[tuple[Any, bytes]]) -> None:
    def send(connection: Any, data: bytes) -> None:
        with suppress(OSError):
            connection.sendall(data)

    threads = [threading.Thread(target=send, args=each) for each in sends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- the parts ------------------------------------------------------------------------------------


@given(st.sampled_from([0x1, 0x9]), st.binary(max_size=300) | st.just(b"x" * 70_000))
def test_the_length_of_a_frame_is_known_from_its_head(opcode: int, payload: bytes) -> None:
    data = frame(opcode, payload)
    assert frame_length(data) == len(data)
    head = 6 if len(payload) < 126 else 8 if len(payload) < 65_536 else 14
    assert frame_length(data[: head - 4]) == len(data)
    assert frame_length(data[: head - 5]) is None


async def test_connections_take_turns() -> None:
    order: list[str] = []

    class Reader:
        def __init__(self, name: str, count: int) -> None:
            self.name, self.left = name, count

        def read_frame(self) -> bool:
            order.append(self.name)
            self.left -= 1
            return self.left > 0

    queue = FrameQueue()
    queue.add(Reader("flood", 100))
    queue.add(Reader("single", 1))
    for _ in range(20):  # iterations of the event loop
        await asyncio.sleep(0)
    assert order[:3] == ["flood", "single", "flood"]
    assert len(order) == 101


def test_a_budget_grows_with_time() -> None:
    now = [0.0]
    budget = FrameBudget(burst=2, per_s=1, clock=lambda: now[0])
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    now[0] = 10.0
    assert [budget.spend() for _ in range(3)] == [True, True, False]
