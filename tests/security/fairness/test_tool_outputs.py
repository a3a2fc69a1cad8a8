"""One tenant's tools return as much as they can, and neither fill the memory nor hold up others.

`pytest -s` prints what was seen. ANTIPHON_TEST_TOOL_REQUESTS is how many requests run at a time.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.http.conftest import script
from tests.security.support.other_tenant import (
    MAX_WAIT_S,
    Attack,
    client_of,
    compare,
    make_keys,
    request_of,
)
from tests.security.support.server_probe import probe_server
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

REQUESTS = int(os.environ.get("ANTIPHON_TEST_TOOL_REQUESTS", "32"))
CALLS = 100
OUTPUT = "x" * 900_000
MAX_GROWTH_BYTES = 400 * 1024 * 1024
"""Of 2.9 GB that the requests ask for. Seen: 155 to 260 MB; an output is held as text, in an event
and in a prompt, and what was freed goes back to the kernel each second."""
LOAD_S = 5.0
MODEL = "scripted-chat"


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    site = FakeMcpServer()
    site.says = {"look": OUTPUT}
    yield site
    site.close()


def test_large_outputs_of_many_calls_fill_no_memory(site: FakeMcpServer, tmp_path: Path) -> None:
    keys, options = make_keys(tmp_path)
    fetching = ("--fetch-urls", "--fetch-hosts", "127.0.0.1:*", "--fetch-private", "127.0.0.1/32")
    tool = {
        "type": "mcp",
        "server_label": "site",
        "server_url": site.url,
        "require_approval": "never",
    }
    look = {"mcp": "look", "args": {}}

    def body_of(calls: int) -> dict[str, object]:
        asked = script([look] * calls, {"say": "done"})
        return {"model": MODEL, "input": asked, "tools": [tool], "store": False}

    with (
        probe_server(tmp_path, "--store", "sqlite", *options, *fetching) as server,
        client_of(server, keys["greedy"]) as greedy,
        client_of(server, keys["other"]) as other,
    ):
        usual = greedy.post("/responses", json=body_of(2)).raise_for_status().json()
        assert len(json.dumps(usual)) > 2 * len(OUTPUT)

        def respond() -> None:
            body = {"model": MODEL, "input": "hi", "store": False}
            other.post("/responses", json=body).raise_for_status()

        attack = request_of(greedy, "POST", "/responses", json=body_of(CALLS))
        attacks = [Attack(attack, REQUESTS)]
        with server.watch(give_back_s=0) as seen:
            waits = compare(server, tmp_path, respond, attacks, full_load_s=LOAD_S, pause_s=0.04)
    print(
        f"others {statistics.median(waits.attacked):.3f} s, frozen {waits.freeze_s:.3f} s, {seen}"
    )
    assert statistics.median(waits.attacked) < MAX_WAIT_S * waits.slowness
    assert seen.peak_growth_bytes < MAX_GROWTH_BYTES
