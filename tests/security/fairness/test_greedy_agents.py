"""Sub-agents that write much take little more memory than their texts.

`pytest -s` prints what was seen. ANTIPHON_TEST_AGENT_WORDS is how much each of them writes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.security.support.other_tenant import client_of, make_keys
from tests.security.support.server_probe import probe_server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

WORDS = int(os.environ.get("ANTIPHON_TEST_AGENT_WORDS", "40000"))
AGENTS = "abc"
MAX_PEAK_BYTES = 120 * 1024 * 1024
"""Seen: 42 MB. Events of each word, kept until their item was complete, took 243 MB."""


def test_agents_that_write_long_texts_fill_no_memory(tmp_path: Path) -> None:
    says = json.dumps([[{"say": "word " * 1000, "repeat": WORDS // 1000}]])

    def spawn(name: str) -> dict[str, Any]:
        message = f"@@script {says}"
        return {"call": "spawn_agent", "args": {"task_name": name, "message": message}}

    waits = [[{"call": "wait_agent"}] for _ in AGENTS]
    turns = [[spawn(name) for name in AGENTS], *waits, [{"say": "done"}]]
    body = {
        "model": "scripted-chat",
        "input": f"@@script {json.dumps(turns)}",
        "multi_agent": {"enabled": True},
    }
    keys, options = make_keys(tmp_path, ["greedy"])
    with (
        probe_server(tmp_path, "--store", "sqlite", *options) as server,
        client_of(server, keys["greedy"]) as client,
    ):
        client.headers["openai-beta"] = "responses_multi_agent=v1"
        with server.watch(give_back_s=0) as seen:
            answer = client.post("/responses", json=body).raise_for_status().json()
    assert answer["status"] != "failed"  # the texts may be longer than the context of the first one
    texts = [
        item["content"][0]["text"]
        for item in answer["output"]
        if item["type"] == "message" and item["agent"]["agent_name"] != "/root"
    ]
    assert [len(text) for text in texts] == [5 * WORDS] * len(AGENTS)
    assert seen.peak_growth_bytes < MAX_PEAK_BYTES
