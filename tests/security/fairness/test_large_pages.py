"""Pages of large items: whoever reads them neither fills the memory nor holds up others.

`pytest -s` prints what was seen.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.security.support.other_tenant import (
    Attack,
    client_of,
    compare,
    make_keys,
    request_of,
)
from tests.security.support.server_probe import MAX_GROWTH_BYTES, probe_server

from antiphon.application.support.listing import PAGE_BYTES

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

ITEM_BYTES = 500_000
ITEMS = 80
AT_ONCE = 20
READERS = 8
MAX_PEAK_BYTES = 150 * 1024 * 1024
"""Without a bound for pages, eight clients took 180 MB for those that were refused alone."""


def test_readers_of_large_pages_fill_no_memory(tmp_path: Path) -> None:
    keys, options = make_keys(tmp_path)
    with (
        probe_server(tmp_path, "--store", "sqlite", *options) as server,
        client_of(server, keys["greedy"]) as greedy,
        client_of(server, keys["other"]) as other,
    ):
        conversation = greedy.post("/conversations", json={}).raise_for_status().json()["id"]
        items = [{"role": "user", "content": "x" * ITEM_BYTES}] * AT_ONCE
        path = f"/conversations/{conversation}/items"
        for _ in range(ITEMS // AT_ONCE):
            greedy.post(path, json={"items": items}).raise_for_status()
        sizes, query, has_more = [], {"limit": "100"}, True
        while has_more:
            answer = greedy.get(path, params=query).raise_for_status()
            assert len(answer.content) < PAGE_BYTES + 1000
            page = answer.json()
            sizes.append(len(page["data"]))
            query, has_more = {**query, "after": page["last_id"]}, page["has_more"]
        assert sum(sizes) == ITEMS
        assert len(sizes) == 1 + ITEMS * ITEM_BYTES // PAGE_BYTES

        def respond() -> None:
            body = {"model": "scripted-chat", "input": "hi", "store": False}
            other.post("/responses", json=body).raise_for_status()

        attacks = [Attack(request_of(greedy, "GET", f"{path}?limit=100"), READERS)]
        with server.watch() as seen:
            waits = compare(server, tmp_path, respond, attacks, pause_s=0.04)
    assert set(waits.answers) == {"200"}
    assert seen.peak_growth_bytes < MAX_PEAK_BYTES
    assert seen.growth_bytes < MAX_GROWTH_BYTES
