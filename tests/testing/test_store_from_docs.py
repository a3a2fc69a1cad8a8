"""A store that somebody made from the page alone keeps every promise, and is served."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.docs.blocks import Block, blocks_of, commands_of
from tests.testing.runs import LIMIT_S, ROOT, STRICT, run_pytest, write

from antiphon.testing.store import StoreContract

pytestmark = pytest.mark.docs

PAGE = ROOT / "docs" / "guides" / "stores.md"
CLI = (sys.executable, "-m", "antiphon.entrypoints.cli")
SECTION = "## A store of your own"


def blocks_of_section() -> list[Block]:
    start = PAGE.read_text("utf-8").splitlines().index(SECTION)
    return [block for block in blocks_of(PAGE) if block.line > start]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.fixture
def commands(folder: Path) -> dict[str, str]:
    """The page's commands by their first word. Its files are written, its package is made."""
    commands = {}
    for block in blocks_of_section():
        if block.directive == "file":
            write(folder, {block.argument: block.text})
            continue
        for command in commands_of(block.text):
            name = command.text.split()[0]
            if name in ("antiphon", "pytest"):
                commands[name] = command.text
            else:
                subprocess.run(command.text, shell=True, cwd=folder, check=True)
    return commands


@pytest.fixture
def url(folder: Path, commands: dict[str, str]) -> Iterator[str]:
    """The URL of the server that the page starts, on another port."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}
    _, *arguments = commands["antiphon"].split()
    server = subprocess.Popen(
        [*CLI, *arguments, "--port", "0", "--data-dir", str(folder)],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        ready = (re.search(r" url: (http://[^;\s]+)", line) for line in server.stderr)
        yield next(found[1] for found in ready if found)
    finally:
        server.terminate()
        server.communicate(timeout=30)


@pytest.mark.timeout(LIMIT_S)
def test_the_store_passes_its_contract(folder: Path, commands: dict[str, str]) -> None:
    _, *arguments = commands["pytest"].split()
    tests = [name for name in dir(StoreContract) if name.startswith("test_")]
    assert run_pytest(folder, *STRICT, *arguments).passed >= len(tests)


def test_the_store_is_served(url: str, folder: Path) -> None:
    answer = httpx.post(f"{url}/responses", json={"model": "scripted", "input": "hi"})
    response = answer.json()
    assert httpx.get(f"{url}/responses/{response['id']}").json() == response
    assert (folder / "antiphon.journal").stat().st_size > 0
