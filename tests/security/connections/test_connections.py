"""Connections are bounded; those that wait make room, and those that do not read end."""

from __future__ import annotations

import json
import os
import resource
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.conftest import settings_for
from tests.http.conftest import wait_until
from tests.security.support.raw_clients import (
    HANGING,
    HEAD,
    STREAM,
    TEXT,
    connect,
    frame,
    post,
    read_until_closed,
    websocket,
)
from tests.security.support.server_probe import MAX_GROWTH_BYTES, probe_server

from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.entrypoints.http.wire.connections import address_of
from antiphon.entrypoints.wiring.transport import max_body_bytes, raise_open_files_limit, transport

pytestmark = pytest.mark.slow

LONG = '@@script [[{"say": "%s", "repeat": 20}]]' % ("word " * 1000)
OTHER = "127.0.0.2"
HALF_HEADS = int(os.environ.get("ANTIPHON_TEST_HALF_HEADS", "1100"))


def is_alive(server: Any) -> bool:
    return httpx.get(f"{server.url}/livez", timeout=30).status_code == 200


def open_count(server: Any) -> int:
    return len(server.app.transport.connections)


def open_half(server: Any, stack: ExitStack, count: int, *, source: str = "127.0.0.1") -> None:
    for _ in range(count):
        stack.enter_context(connect(server, source=source)).sendall(HEAD)


def test_connections_without_a_request_make_room_for_new_ones(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(max_connections=20) as server, ExitStack() as stack:
        open_half(server, stack, 50)
        assert is_alive(server)
        assert open_count(server) <= 20
    lines = [record for record in caplog.records if "too many connections" in record.message]
    assert len(lines) == 1
    assert lines[0].levelname == "ERROR"


def test_a_connection_with_a_request_does_not_make_room(serve: Any) -> None:
    with serve(max_connections=10) as server, ExitStack() as stack:
        working = stack.enter_context(connect(server))
        working.sendall(post({**STREAM, "input": '@@script [[{"hang": 1}, {"say": "late"}]]'}))
        assert working.recv(100).startswith(b"HTTP/1.1 200")
        open_half(server, stack, 30)
        received = b""
        while b"response.completed" not in received:
            received += working.recv(65536)


def test_nobody_pushes_out_the_connections_of_another_address(serve: Any) -> None:
    with serve(max_connections=20) as server, ExitStack() as stack:
        mine = stack.enter_context(connect(server))
        mine.sendall(b"GET /livez HTTP/1.1\r\n")
        open_half(server, stack, 60, source=OTHER)
        mine.sendall(b"host: localhost\r\n\r\n")
        assert mine.recv(100).startswith(b"HTTP/1.1 200")


def test_an_idle_connection_makes_room_again(serve: Any) -> None:
    with serve(max_connections=5) as server, ExitStack() as stack:
        idle = stack.enter_context(connect(server))
        idle.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):  # its head may come alone
            answer += idle.recv(65536)
        open_half(server, stack, 10)
        assert read_until_closed(idle) == b""


def test_without_room_a_new_connection_is_told_to_try_again_later(serve: Any) -> None:
    with serve(max_connections=2) as server, ExitStack() as stack:
        for _ in range(2):
            working = stack.enter_context(connect(server))
            working.sendall(post(HANGING))
            assert working.recv(100).startswith(b"HTTP/1.1 200")
        head, _, body = read_until_closed(stack.enter_context(connect(server))).partition(
            b"\r\n\r\n"
        )
    assert head.startswith(b"HTTP/1.1 503")
    assert b"\r\nretry-after: 1\r\n" in head
    assert json.loads(body)["error"]["type"] == "server_error"


def test_an_address_can_have_a_limit_of_its_own(serve: Any) -> None:
    with serve(max_connections_per_address=2) as server, ExitStack() as stack:
        for _ in range(2):
            working = stack.enter_context(connect(server, source=OTHER))
            working.sendall(post(HANGING))
            assert working.recv(100).startswith(b"HTTP/1.1 200")
        third = stack.enter_context(connect(server, source=OTHER))
        assert read_until_closed(third).startswith(b"HTTP/1.1 503")
        assert is_alive(server)


def test_a_websocket_counts_as_one_connection_until_it_is_closed(serve: Any) -> None:
    with serve() as server:
        with websocket(server):
            assert open_count(server) == 1
        wait_until(lambda: open_count(server) == 0)


def test_a_reader_that_does_not_read_is_disconnected(serve: Any) -> None:
    with serve(write_stall_s=0.4) as server, connect(server, receive_buffer=4096) as reader:
        reader.sendall(post({**STREAM, "input": LONG}))
        wait_until(lambda: open_count(server) == 1)
        wait_until(lambda: open_count(server) == 0)
        assert b"response.completed" not in read_until_closed(reader)


def test_a_reader_that_does_not_read_its_whole_answer_is_disconnected(serve: Any) -> None:
    # The answer fits into the buffers, so nothing waits for it to be read.
    with serve(write_stall_s=0.4) as server, connect(server, receive_buffer=4096) as reader:
        reader.sendall(
            post(
                {
                    "model": "scripted-chat",
                    "input": '@@script [[{"say": "%s"}]]' % ("word " * 40_000),
                }
            )
        )
        wait_until(lambda: open_count(server) == 1)
        wait_until(lambda: open_count(server) == 0)


def test_a_websocket_that_does_not_read_is_disconnected(serve: Any) -> None:
    with serve(write_stall_s=0.4) as server, websocket(server, receive_buffer=4096) as reader:
        asked = {"type": "response.create", "model": "scripted-chat", "input": LONG}
        reader.sendall(frame(TEXT, json.dumps(asked).encode()))
        wait_until(lambda: open_count(server) == 0)


def test_a_run_goes_on_without_the_reader_that_was_disconnected(serve: Any) -> None:
    with serve(write_stall_s=0.4) as server, connect(server, receive_buffer=4096) as reader:
        body = {"model": "scripted-chat", "input": LONG, "background": True, "stream": True}
        reader.sendall(post(body))
        started = reader.recv(4096)
        while b"resp_" not in started or b'",' not in started.partition(b"resp_")[2]:
            started += reader.recv(4096)
        wait_until(lambda: open_count(server) == 0)
        response_id = "resp_" + started.partition(b"resp_")[2].partition(b'"')[0].decode()
        url = f"{server.api}/responses/{response_id}"
        wait_until(lambda: httpx.get(url).json()["status"] == "completed")


def test_a_slow_reader_is_no_stalled_one(serve: Any) -> None:
    stall_s = 1.5  # a busy machine stops this test itself for a while
    with serve(write_stall_s=stall_s) as server, connect(server, receive_buffer=4096) as reader:
        reader.sendall(post({**STREAM, "input": LONG}))
        end = time.monotonic() + 2 * stall_s
        while time.monotonic() < end:
            assert reader.recv(1024)
            time.sleep(0.002)  # a pace that keeps the server's buffers full
        assert open_count(server) == 1


def test_there_are_fewer_connections_than_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        limited = transport(settings_for(tmp_path), BytesInWork())
        raise_open_files_limit()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limited.connections.limits.max_connections == 768
    assert raised == min(hard, 65_536)


@pytest.mark.parametrize(("reads_images", "expected"), [(True, 32 * 2**20), (False, 8 * 2**20)])
def test_only_models_that_read_images_need_large_bodies(
    tmp_path: Path, reads_images: bool, expected: int
) -> None:
    class Served:
        all = (SimpleNamespace(reads_images=False), SimpleNamespace(reads_images=reads_images))

    models: Any = Served()
    assert max_body_bytes(settings_for(tmp_path), models) == expected
    assert max_body_bytes(settings_for(tmp_path, max_body_bytes=2048), models) == 2048


def test_ipv6_clients_count_by_network() -> None:
    class Peer:
        def __init__(self, host: str) -> None:
            self.host = host

        def get_extra_info(self, _name: str) -> Any:
            return (self.host, 1, 0, 0)

    def address(host: str) -> str:
        return address_of(Peer(host))  # type: ignore[arg-type]

    assert address("2001:db8::1") == address("2001:db8::ffff:1") != address("2001:db8:0:1::1")
    assert address("::ffff:10.0.0.1") == address("10.0.0.1")


@pytest.mark.faults
def test_many_half_heads_without_a_key_stop_nobody(tmp_path: Path) -> None:
    with probe_server(tmp_path, "--max-connections", "768") as server, ExitStack() as stack:
        resource.prlimit(server.replica.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        with server.watch() as attack:
            open_half(server, stack, HALF_HEADS, source=OTHER)
            assert is_alive(server)
    assert "too many connections" in server.log()
    assert attack.freeze_s < 2 * attack.max_freeze_s
    assert attack.growth_bytes < MAX_GROWTH_BYTES
