"""A refused body is freed with its answer, also when its error refers to the request.

`ANTIPHON_TEST_REFUSED_BODIES` says how many there are of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
from tests.security.support.server_probe import MAX_GROWTH_BYTES, ProbedServer, probe_server
from websockets.sync.client import connect

pytestmark = pytest.mark.faults

ROUNDS = int(os.environ.get("ANTIPHON_TEST_REFUSED_BODIES", "20"))
LIMIT_S = 60
LENGTH = 9_000_000

START = b'{"type":"response.create","model":"scripted-chat",'
BODIES: Mapping[str, bytes] = {
    "too many values": START + b'"input":[' + b"null, " * (LENGTH // 6) + b"null]}",
    "a field of another type": START + b'"temperature":"x","input":"' + b"a" * LENGTH + b'"}',
    "JSON that is cut off": START + b'"input":"' + b"a" * LENGTH,
    "a prompt that is too long": START + b'"input":"' + b"a " * (LENGTH // 2) + b'"}',
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ProbedServer]:
    with probe_server(tmp_path) as probed:
        yield probed


@pytest.mark.parametrize("kind", BODIES)
def test_a_refused_body_leaves_no_memory(server: ProbedServer, kind: str) -> None:
    headers = {"content-type": "application/json"}
    with (
        httpx.Client(base_url=server.url, headers=headers, timeout=LIMIT_S) as client,
        server.watch() as seen,
    ):
        for _ in range(ROUNDS):
            assert client.post("/v1/responses", content=BODIES[kind]).status_code == 400
    assert seen.peak_growth_bytes < 10 * LENGTH
    assert seen.growth_bytes < MAX_GROWTH_BYTES


@pytest.mark.parametrize("kind", BODIES)
def test_a_refused_message_leaves_no_memory(server: ProbedServer, kind: str) -> None:
    url = f"{server.url.replace('http', 'ws')}/v1/responses"
    with server.watch() as seen:
        for _ in range(ROUNDS):
            with connect(url, max_size=None) as socket:
                socket.send(BODIES[kind].decode())
                assert '"status":400' in str(socket.recv(LIMIT_S))
    assert seen.peak_growth_bytes < 10 * LENGTH
    assert seen.growth_bytes < MAX_GROWTH_BYTES
