"""Long paths that a client makes up leave no memory behind: the router keeps the last paths."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.security.support.server_probe import MAX_GROWTH_BYTES, probe_server

HEAD_CHARS = 60_000
"""Nearly all that a head may have."""

PATHS: dict[str, Callable[[int], str]] = {
    "of the greatest length that is let in": lambda number: f"/v1/responses/{number:0>2034}",
    "of a whole head": lambda number: f"/v1/responses/{number:0>{HEAD_CHARS}}",
    "of no route": lambda number: f"/{number:0>{HEAD_CHARS}}",
}


@pytest.mark.faults
@pytest.mark.parametrize("make_path", PATHS.values(), ids=PATHS)
def test_paths_that_a_client_makes_up_are_not_kept(
    tmp_path: Path, make_path: Callable[[int], str]
) -> None:
    with (
        probe_server(tmp_path, "--store", "memory") as server,
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection,
    ):

        def ask(path: str) -> int:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status

        ask("/v1/responses/resp_none")
        with server.watch() as seen:
            statuses = {ask(make_path(number)) for number in range(1500)}
    assert statuses <= {400, 404}
    assert seen.growth_bytes < MAX_GROWTH_BYTES
