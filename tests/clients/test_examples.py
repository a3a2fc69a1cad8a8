"""Every example runs against a server and prints what its reader expects."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

pytestmark = pytest.mark.docs  # each is a process of its own

EXAMPLES = Path(__file__).parents[2] / "examples"
FOR_THE_SERVER = {"custom_engine.py", "custom_model.py", "custom_store.py", "guards.py", "tools.py"}
PRINTED = {
    "create.py": "model: Echo: Say hello.",
    "stream.py": "|.|\ncompleted after 11 tokens",
    "tool_call.py": "the model calls: get_weather {'city': 'Bonn'}",
    "structured.py": "Place(city='Bonn', population=336000)",
    "resume.py": "nothing is missing up to response.completed",
    "compact.py": "kept: message compaction\nyou:   What is my cat called?\nmodel: Mina.",
    "websocket.py": "you:   And again.\nmodel: Echo: And again.",
    "conversation.py": "  user: Now say goodbye.\n  assistant: Echo: Now say goodbye.",
    "file_search.py": "and says: Within two weeks 【0:0†refunds.md】.\nciting:   refunds.md",
    "scripted.py": "the model thinks: They greet me.\nthe model says:   Hello there!",
}


@pytest.fixture(scope="module")
def guarded(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The base URL of a server that asks for keys, and a key."""
    folder = tmp_path_factory.mktemp("guarded")
    key, kept = create_key("reader", "default", new_id=new_id, now=time.time)
    append(folder / "keys.toml", kept)
    with serve_from(folder, store="sqlite", auth="on", keys_file=folder / "keys.toml") as server:
        yield server.api, key


def test_every_example_is_run() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(PRINTED) | FOR_THE_SERVER


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_example_prints_what_it_promises(guarded: tuple[str, str], name: str) -> None:
    url, key = guarded
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env={**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert PRINTED[name] in ran.stdout


def test_an_example_needs_no_key_where_the_server_asks_for_none(server: Any) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    ran = subprocess.run(
        [sys.executable, EXAMPLES / "create.py"],
        env={**inherited, "OPENAI_BASE_URL": server.api},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert PRINTED["create.py"] in ran.stdout
