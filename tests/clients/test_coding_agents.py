"""Coding agents for the command line, each in a folder of its own, without any network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import INSTALLED, Run

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120)]
Script = Callable[..., str]

PATCH = """*** Begin Patch
*** Update File: greeting.txt
@@
-hello
+bonjour
*** Add File: added.txt
+new
*** End Patch
"""

CODEX = """
model_provider = "antiphon"
web_search = "disabled"
[model_providers.antiphon]
name = "Antiphon"
base_url = "{url}"
wire_api = "responses"
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "greeting.txt").write_text("hello\n")
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def test_codex_runs_commands_and_applies_patches(
    run_node: Run, server: object, model: str, script: Script, workspace: Path, home: Path
) -> None:
    (home / "config.toml").write_text(CODEX.format(url=server.api))  # type: ignore[attr-defined]
    turns = (
        [
            {"think": "Look first."},
            {"call": "exec_command", "args": {"cmd": "cat greeting.txt > read.txt"}},
        ],
        {"call": "exec_command", "args": {"cmd": f"apply_patch <<'EOF'\n{PATCH}EOF\n"}},
        {"say": "The greeting is French now."},
    )
    printed = run_node(
        INSTALLED / ".bin" / "codex",
        *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("--model", model, script(*turns)),
        cwd=workspace,
        HOME=str(home),
        CODEX_HOME=str(home),
    )
    assert "The greeting is French now." in printed
    written = {file.name: file.read_text() for file in workspace.glob("*.txt")}
    assert written == {"greeting.txt": "bonjour\n", "read.txt": "hello\n", "added.txt": "new\n"}


def test_opencode_runs_commands_and_writes_files(
    run_node: Run, server: object, model: str, script: Script, workspace: Path, home: Path
) -> None:
    provider = {
        "npm": "@ai-sdk/openai",
        "options": {"baseURL": server.api, "apiKey": "none"},  # type: ignore[attr-defined]
        "models": {model: {}},
    }
    settings = {
        "provider": {"antiphon": provider},
        "small_model": f"antiphon/{model}",
        "permission": "allow",
        "autoupdate": False,
    }
    (workspace / "opencode.json").write_text(json.dumps(settings))
    file = {"filePath": str(workspace / "added.txt"), "content": "new\n"}
    turns = (
        [
            {"think": "Look first."},
            {
                "call": "bash",
                "args": {"command": "cat greeting.txt > read.txt", "description": "Reads"},
            },
        ],
        {"call": "write", "args": file},
        {"say": "Written."},
    )
    printed = run_node(
        INSTALLED / ".bin" / "opencode",
        *("run", "--model", f"antiphon/{model}", script(*turns)),
        cwd=workspace,
        HOME=str(home),
        XDG_CONFIG_HOME=str(home / "config"),
        XDG_DATA_HOME=str(home / "share"),
        XDG_CACHE_HOME=str(home / "cache"),
        XDG_STATE_HOME=str(home / "state"),
        OPENCODE_DISABLE_MODELS_FETCH="1",
    )
    assert "Written." in printed
    written = {file.name: file.read_text() for file in workspace.glob("*.txt")}
    assert written == {"greeting.txt": "hello\n", "read.txt": "hello\n", "added.txt": "new\n"}
