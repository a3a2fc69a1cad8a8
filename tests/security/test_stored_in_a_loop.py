"""Who stores in a loop is stopped by a quota, and fills no memory.

ANTIPHON_TEST_STORED_MB is how much is sent.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.security.support.other_tenant import client_of, make_keys
from tests.security.support.server_probe import MAX_GROWTH_BYTES, probe_server

pytestmark = pytest.mark.faults

STORED_MB = int(os.environ.get("ANTIPHON_TEST_STORED_MB", "60"))
QUOTA_BYTES = STORED_MB * 500_000


def test_storing_in_a_loop_ends_at_the_quota_and_fills_no_memory(tmp_path: Path) -> None:
    keys, options = make_keys(tmp_path)
    items = [{"type": "message", "role": "user", "content": "x" * 1_000_000}]
    quota = ("--store", "sqlite", "--quota-bytes", str(QUOTA_BYTES))
    with (
        probe_server(tmp_path, *options, *quota) as server,
        client_of(server, keys["greedy"]) as client,
    ):
        for _ in range(10):  # the process becomes as large as such a request needs it to be
            client.post("/conversations", json={"items": items})
        with server.watch() as attack:
            statuses = [
                client.post("/conversations", json={"items": items}).status_code
                for _ in range(STORED_MB)
            ]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert attack.growth_bytes < MAX_GROWTH_BYTES
