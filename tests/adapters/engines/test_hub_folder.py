"""The tokenizer of a model that its servers have from a hub is fetched from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FETCH = """\
import asyncio, sys
from antiphon.adapters.engines.vllm_http.hub_folder import fetch_model_folder
print(asyncio.run(fetch_model_folder(sys.argv[1])))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A home of huggingface_hub, whose cache has the tokenizer of `org/tiny`."""
    cached = tmp_path / "hub" / "models--org--tiny"
    snapshot = cached / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").write_text("{}", encoding="utf-8")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    return tmp_path


def fetched(home: Path, name: str) -> str:
    """Return what a process without a network fetches: the variables are read at the import."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", FETCH, name],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=40,
    )
    return ran.stdout.strip()


def test_a_tokenizer_that_was_fetched_once_needs_no_network(hub: Path) -> None:
    folder = Path(fetched(hub, "org/tiny"))
    assert [each.name for each in folder.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize("name", ["org/other", "/no/such/folder", "../tiny", "tiny", "org/tiny/x"])
def test_what_cannot_be_fetched_is_not_known(hub: Path, name: str) -> None:
    assert fetched(hub, name) == "None"
