"""What tests of clients share: both scripted models, their script, and the clients for Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

HERE = Path(__file__).parent
INSTALLED = HERE / "node_modules"
Run = Callable[..., str]


@pytest.fixture(params=["scripted-chat", "scripted-harmony"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=15) as sdk:
        yield sdk


def script(*turns: Any) -> str:
    """A message that makes the scripted models play these turns."""
    return f"Follow this. @@script {json.dumps(list(turns))}"


@pytest.fixture(name="script")
def script_fixture() -> Callable[..., str]:
    return script


@pytest.fixture
def run_node() -> Run:
    """Run a program for Node, which must succeed, and return what it printed."""
    if shutil.which("node") is None:
        pytest.skip("there is no node on this machine")

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
