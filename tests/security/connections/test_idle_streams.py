"""What readers cost that read nothing, or have nothing to read."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.security.support.raw_clients import connect, post
from tests.security.support.server_probe import ProbedServer, probe_server

pytestmark = pytest.mark.faults

STREAMS = int(os.environ.get("ANTIPHON_TEST_IDLE_STREAMS", "1000"))
READERS = int(os.environ.get("ANTIPHON_TEST_SLOW_READERS", "200"))
MAX_STREAM_BYTES = 64 * 1024
MAX_UNREAD_BYTES = 96 * 1024
"""In the server, for a reader: 200 of them stay below 20 MB."""

MAX_READER_BYTES = 512 * 1024
"""In the server and in the kernel together."""

BODY = {"model": "scripted-chat", "stream": True, "store": False}
STEPS = 100


def test_a_stream_without_events_costs_little(tmp_path: Path) -> None:
    request = post({**BODY, "input": '@@script [[{"say": "now"}, {"hang": 600}]]'})
    with (
        probe_server(tmp_path, "--store", "memory", "--max-runs", str(STREAMS)) as server,
        ExitStack() as stack,
        server.watch() as idle,
    ):
        for _ in range(STREAMS):
            connection = stack.enter_context(connect(server))
            connection.sendall(request)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert idle.growth_bytes / STREAMS < MAX_STREAM_BYTES


def test_readers_that_do_not_read_cost_the_others_nothing(tmp_path: Path) -> None:
    with probe_server(tmp_path, "--store", "memory") as server, ExitStack() as stack:
        url = _long_response(server)
        undisturbed = _longest_gap(server)
        path = url.partition(server.url)[2]
        with server.watch() as attack:
            for _ in range(READERS):
                reader = stack.enter_context(connect(server, receive_buffer=4096))
                line = f"GET {path}?stream=true HTTP/1.1\r\n"
                reader.sendall(f"{line}host: localhost\r\n\r\n".encode())
            _longest_gap(server)  # until the readers have filled their buffers
            disturbed = _longest_gap(server)
            kernel_bytes = _unsent_bytes(server)
    assert attack.growth_bytes / READERS < MAX_UNREAD_BYTES
    assert (attack.growth_bytes + kernel_bytes) / READERS < MAX_READER_BYTES
    assert disturbed < max(3 * undisturbed, 0.5)


def _long_response(server: ProbedServer) -> str:
    """Return the URL of a response with megabytes of events."""
    body = {
        "model": "scripted-chat",
        "input": '@@script [[{"say": "%s"}]]' % ("word " * 15_000),
        "background": True,
        "stream": True,
    }
    with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=120) as answer:
        text = "".join(answer.iter_text())
    assert "response.completed" in text
    return f"{server.url}/v1/responses/resp_" + text.partition('"resp_')[2].partition('"')[0]


def _longest_gap(server: ProbedServer) -> float:
    """Return the longest wait between two events of a stream that another client reads."""
    turn = [{"say": "word "}, {"hang": 0.01}] * STEPS
    body = {**BODY, "input": f"@@script {json.dumps([turn])}"}
    longest, last = 0.0, time.monotonic()
    with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=120) as answer:
        for _ in answer.iter_raw():
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
    return longest


def _unsent_bytes(server: ProbedServer) -> int:
    """Return the bytes that the kernel keeps for the server's clients."""
    listed = subprocess.run(
        ["ss", "-tnH", "sport", "=", f":{server.port}"], capture_output=True, text=True, check=True
    )
    return sum(int(line.split()[2]) for line in listed.stdout.splitlines())
