"""Every example runs against a server and prints what its reader expects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FOR_THE_SERVER = {"custom_store.py", "tools.py"}
PRINTED = {
    "create.py": "Echo: Say hello.",
    "stream.py": "completed",
    "tool_call.py": "the model calls get_weather",
    "structured.py": "city=",
    "resume.py": "True response.completed",
    "compact.py": "['message', 'compaction']",
    "websocket.py": "Echo: And again.",
    "conversation.py": "['user', 'assistant', 'user', 'assistant']",
    "file_search.py": "refunds.md Within two weeks",
    "scripted.py": "['reasoning', 'message'] Hello there!",
}


def test_every_example_is_run() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == set(PRINTED) | FOR_THE_SERVER


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_the_example_prints_what_it_promises(server: Any, name: str) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env={**os.environ, "ANTIPHON_URL": server.api},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert PRINTED[name] in ran.stdout
