"""Coding agents for the command line, each in a folder of its own, without any network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.entrypoints.http.api.codex.catalog import INSTRUCTIONS

from .conftest import INSTALLED, Run, claude_variables

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
[model_providers.antiphon]
name = "Antiphon"
base_url = "{url}"
wire_api = "responses"
supports_websockets = {websockets}
"""
CODEX_AUTH = """
[model_providers.antiphon.auth]
command = "echo"
args = ["none"]
"""
"""Codex fetches the catalog of models only from a provider that it gets its keys for itself."""

EFFECTIVE_SHARE = 0.95
"""Of the context window, what Codex fills."""

Codex = Callable[..., str]

CODE_MODE = "gpt-6.1-sol"
"""A model to which Codex offers one tool that runs JavaScript, which calls all the others."""


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


@pytest.fixture(params=["false", "true"], ids=["http", "websocket"])
def codex(request: pytest.FixtureRequest, run_node: Run, workspace: Path, home: Path) -> Codex:
    """Run Codex on a prompt, with the tools that it offers by default; `resumes` the last one.

    `first` and `last` are added to its settings.
    """

    def run(
        prompt: str, *, url: str, model: str, resumes: bool = False, first: str = "", last: str = ""
    ) -> str:
        settings = CODEX.format(url=url, websockets=request.param)
        (home / "config.toml").write_text(first + settings + last)
        return run_node(
            INSTALLED / ".bin" / "codex",
            *("exec", "resume") if resumes else ("exec",),
            *("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("--model", model),
            *("--last", prompt) if resumes else (prompt,),
            cwd=workspace,
            HOME=str(home),
            CODEX_HOME=str(home),
        )

    return run


def code(program: str) -> dict[str, str]:
    return {"custom": "exec", "input": program}


def texts_in(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.txt")}


def test_codex_runs_commands_and_applies_patches(
    codex: Codex, server: Any, model: str, script: Script, workspace: Path
) -> None:
    turns = (
        [
            {"think": "Look first."},
            {"call": "exec_command", "args": {"cmd": "cat greeting.txt > read.txt"}},
        ],
        {"call": "exec_command", "args": {"cmd": f"apply_patch <<'EOF'\n{PATCH}EOF\n"}},
        {"say": "The greeting is French now."},
    )
    printed = codex(script(*turns), url=server.api, model=model)
    assert "Falling back" not in printed
    assert "The greeting is French now." in printed
    assert texts_in(workspace) == {
        "greeting.txt": "bonjour\n",
        "read.txt": "hello\n",
        "added.txt": "new\n",
    }


def test_codex_gives_a_model_that_it_knows_the_tools_of_that_model(
    codex: Codex, serve: Any, script: Script, workspace: Path, model: str
) -> None:
    turns = {"custom": "apply_patch", "input": PATCH}, {"say": "Patched."}
    with serve(model=model, served_model_name=("gpt-5.5",)) as server:
        printed = codex(script(*turns), url=server.api, model="gpt-5.5")
    assert "Patched." in printed
    assert texts_in(workspace) == {"greeting.txt": "bonjour\n", "added.txt": "new\n"}


def test_codex_runs_the_programs_of_its_code_mode(
    codex: Codex, serve: Any, script: Script, workspace: Path, model: str
) -> None:
    command = "cat greeting.txt | tee read.txt"
    turns = (
        [
            {"think": "Look first."},
            code(f"text((await tools.exec_command({{cmd: {json.dumps(command)}}})).output);"),
        ],
        code(f'text(await tools.apply_patch({json.dumps(PATCH)}));\n// "é" \\n `done`'),
        {"say": "Patched."},
    )
    again = code('await tools.exec_command({cmd: "echo late > late.txt"});'), {"say": "Late."}
    with serve(model=model, served_model_name=(CODE_MODE,)) as server:
        first = codex(script(*turns), url=server.api, model=CODE_MODE)
        patched = texts_in(workspace)
        second = codex(script(*again), url=server.api, model=CODE_MODE, resumes=True)
    assert "Patched." in first
    assert "Late." in second
    assert "Falling back" not in first + second
    written = {"greeting.txt": "bonjour\n", "read.txt": "hello\n", "added.txt": "new\n"}
    assert patched == written
    assert texts_in(workspace) == {**written, "late.txt": "late\n"}


SUB_AGENTS = """
[features]
multi_agent_v2 = true
"""


def test_codex_gives_work_to_a_sub_agent(
    codex: Codex, server: Any, model: str, script: Script, workspace: Path, home: Path
) -> None:
    child = script(
        {"call": "exec_command", "args": {"cmd": "cat greeting.txt > read.txt"}},
        {"say": "The child has read it."},
    )
    turns = (
        {
            "call": "spawn_agent",
            "args": {"task_name": "reader", "message": child, "fork_turns": "none"},
        },
        {"call": "wait_agent", "args": {}},
        {"say": "Both are done."},
    )
    printed = codex(script(*turns), url=server.api, model=model, last=SUB_AGENTS)
    assert "Both are done." in printed
    assert texts_in(workspace)["read.txt"] == "hello\n"
    # The parent's next request has what the child wrote.
    recorded = "".join(file.read_text() for file in home.rglob("*.jsonl"))
    assert "The child has read it." in recorded


def fetched_catalog(_api: str, _home: Path) -> dict[str, str]:
    """Return the settings with which Codex fetches the catalog itself."""
    return {"last": CODEX_AUTH}


def saved_catalog(api: str, home: Path) -> dict[str, str]:
    """Save the catalog, and return the settings with which Codex reads the file."""
    file = home / "models.json"
    file.write_bytes(httpx.get(f"{api}/models", params={"client_version": "0"}).content)
    return {"first": f'model_catalog_json = "{file}"'}


@pytest.mark.parametrize("catalog", [fetched_catalog, saved_catalog])
def test_codex_knows_the_models_of_the_catalog(
    codex: Codex,
    serve: Any,
    script: Script,
    workspace: Path,
    home: Path,
    model: str,
    catalog: Callable[[str, Path], dict[str, str]],
) -> None:
    turns = {"custom": "apply_patch", "input": PATCH}, {"say": "Patched."}
    with serve(**{"scripted.context_length": 50_000}) as server:
        settings = catalog(server.api, home)
        printed = codex(script(*turns), url=server.api, model=model, **settings)
    assert "Patched." in printed
    assert "etadata" not in printed
    assert "Falling back" not in printed
    assert texts_in(workspace) == {"greeting.txt": "bonjour\n", "added.txt": "new\n"}
    recorded = list(recorded_by_codex(home))
    windows = {
        each["info"]["model_context_window"]
        for each in recorded
        if each.get("type") == "token_count" and each["info"]
    }
    assert windows == {50_000 * EFFECTIVE_SHARE}
    (started,) = (each for each in recorded if "base_instructions" in each)
    assert started["base_instructions"]["text"] == INSTRUCTIONS


def test_codex_warns_without_the_catalog(
    codex: Codex, server: Any, script: Script, model: str
) -> None:
    """Or else no test would notice that the warning has other words now."""
    printed = codex(script({"say": "Done."}), url=server.api, model=model)
    assert "Model metadata" in printed


def recorded_by_codex(home: Path) -> Iterator[dict[str, Any]]:
    """Yield what Codex recorded of its sessions."""
    for file in (home / "sessions").rglob("*.jsonl"):
        for line in file.read_text().splitlines():
            yield json.loads(line)["payload"]


def test_opencode_runs_commands_and_writes_files(
    run_node: Run, server: Any, model: str, script: Script, workspace: Path, home: Path
) -> None:
    provider = {
        "npm": "@ai-sdk/openai",
        "options": {"baseURL": server.api, "apiKey": "none"},
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
    written = texts_in(workspace)
    assert written == {"greeting.txt": "hello\n", "read.txt": "hello\n", "added.txt": "new\n"}


@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "default"])
def test_claude_code_runs_commands_and_writes_files(
    run_node: Run,
    server: Any,
    model: str,
    script: Script,
    workspace: Path,
    home: Path,
    chosen: bool,
) -> None:
    if not chosen and model != "scripted-chat":
        pytest.skip("only one model is the default")
    file = {"file_path": str(workspace / "added.txt"), "content": "new\n"}
    turns = (
        [
            {"think": "Look first."},
            {
                "call": "Bash",
                "args": {"command": "cat greeting.txt > read.txt", "description": "Reads"},
            },
        ],
        {"call": "Write", "args": file},
        {"say": "Written."},
    )
    printed = run_node(
        INSTALLED / ".bin" / "claude",
        *("--print", "--dangerously-skip-permissions", script(*turns)),
        *(("--model", model) if chosen else ()),
        cwd=workspace,
        **claude_variables(home, server.url),
    )
    assert "Written." in printed
    assert texts_in(workspace) == {
        "greeting.txt": "hello\n",
        "read.txt": "hello\n",
        "added.txt": "new\n",
    }
