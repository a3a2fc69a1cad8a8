"""`antiphon explain` and `antiphon replay`, as people run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script

pytestmark = pytest.mark.slow

FIELDS: dict[str, Any] = {
    "model": "scripted-chat",
    "input": script([{"think": "Hm."}, {"say": "Hello."}]),
}


def antiphon(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "antiphon.entrypoints.cli", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_response_is_explained_and_replayed(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    with serve(keep_traces="all", store="sqlite") as server:
        with httpx.Client(base_url=server.api, timeout=15) as http:
            response_id = create(http, **FIELDS)["id"]
        explained = antiphon("explain", response_id, "--url", server.api, "--output", file)
        unknown = antiphon("explain", "resp_none", "--url", server.api)
    assert explained.returncode == 0, explained.stderr
    assert "completed" in explained.stdout
    assert "turn 1: answer" in explained.stdout
    assert unknown.returncode == 1
    assert file.stat().st_mode & 0o077 == 0

    replayed = antiphon("replay", file)
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert "Nothing differs" in replayed.stdout
    assert antiphon("replay", file, "--script").stdout.startswith("@@script [")

    original = file.read_bytes()
    file.write_bytes(original.replace(b"Hello.", "Hello.\x9b2K".encode()))
    controlling = antiphon("replay", file, "--script")
    assert "\\u009b2K" in controlling.stdout
    assert controlling.stdout.replace("\n", "").isprintable()
    file.write_bytes(original)

    file.write_bytes(file.read_bytes().replace(b"Hello.", b"Hallo."))
    assert antiphon("replay", file).returncode == 0, "it was changed everywhere alike"
    file.write_bytes(file.read_bytes().replace(b'"text":"Hallo."', b'"text":"Hullo."'))
    changed = antiphon("replay", file)
    assert changed.returncode == 1
    assert "Hullo." in changed.stdout

    file.write_text("{}")
    broken = antiphon("replay", file)
    assert broken.returncode == 2
    assert "version" in broken.stderr


def test_an_explanation_says_what_the_prompt_cache_could_reuse(serve: Any) -> None:
    with serve(store="sqlite") as server:
        with httpx.Client(base_url=server.api, timeout=15) as http:
            first = create(http, **FIELDS, instructions="Be kind.")
            options = {"comparison_response_id": first["id"]}
            body = {**FIELDS, "prompt_cache_options": options}
            hit = create(http, **body, instructions="Be kind.")
            miss = create(http, **body, instructions="Be curt.")
            lost = create(http, **FIELDS, prompt_cache_options={"comparison_response_id": "x"})
        lines = [
            next(line for line in explained.stdout.splitlines() if line.startswith("prompt cache"))
            for each in (hit, miss, lost)
            if (explained := antiphon("explain", each["id"], "--url", server.api))
        ]
    at = miss["prompt_cache_diagnostics"]["comparison_reusable_tokens"]
    tokens = miss["usage"]["input_tokens"]
    assert lines == [
        f"prompt cache: hit: the prompt continues {first['id']}, which has {tokens} tokens: "
        f"{tokens} are shared",
        f"prompt cache: miss: input_changed: instructions differs from {first['id']} at token {at} "
        f"of {tokens}",
        "prompt cache: there is no response x to compare",
    ]


def test_a_response_is_explained_from_its_store(serve: Any, tmp_path: Path) -> None:
    with (
        serve(keep_traces="all", store="sqlite") as server,
        httpx.Client(base_url=server.api, timeout=15) as http,
    ):
        response_id = create(http, **FIELDS)["id"]
    folder = next(tmp_path.rglob("antiphon.db")).parent
    explained = antiphon("explain", response_id, "--store", "sqlite", "--data-dir", folder)
    assert explained.returncode == 0, explained.stderr
    assert "turn 1: answer" in explained.stdout
    assert "trace: 1 turns" in explained.stdout


def test_a_tree_of_agents_is_explained_and_replayed(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    task = {"task_name": "north", "message": script({"say": "Snow."})}
    spawn, wait = {"call": "spawn_agent", "args": task}, {"call": "wait_agent"}
    late = {**spawn, "args": {**task, "task_name": "south"}}
    fields = {"model": "scripted-chat", "multi_agent": {"enabled": True}}
    headers = {"OpenAI-Beta": "responses_multi_agent=v1"}
    with serve(keep_traces="all", store="sqlite") as server:
        with httpx.Client(base_url=server.api, timeout=15, headers=headers) as http:
            response = create(http, **fields, input=script(spawn, wait, late, {"say": "Done."}))
        explained = antiphon("explain", response["id"], "--url", server.api, "--output", file)
    assert explained.returncode == 0, explained.stderr
    assert "sub-agent: /root/north: completed" in explained.stdout
    replayed = antiphon("replay", file)
    assert (replayed.returncode, replayed.stderr) == (0, ""), replayed.stdout
    assert "Nothing differs" in replayed.stdout
