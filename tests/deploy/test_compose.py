"""compose.yaml, read by Compose itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import yaml
from tests.deploy.tools import DEPLOY, program, run

from antiphon.entrypoints.settings import load

FILE = DEPLOY / "compose/compose.yaml"
VARIABLES = {"POSTGRES_PASSWORD": "not-a-secret"}

pytestmark = pytest.mark.deploy


@cache
def compose() -> Sequence[str]:
    """Return the command of Compose: Docker's plugin, or the program of its own."""
    docker = program("docker")
    plugin = subprocess.run([docker, "compose", "version"], capture_output=True, timeout=30)
    if plugin.returncode == 0:
        return (docker, "compose", "--file", str(FILE))
    return (program("docker-compose"), "--file", str(FILE))


@cache
def services() -> dict[str, Any]:
    text = run(*compose(), "--profile", "gpu", "config", variables=VARIABLES)
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def test_compose_reads_it() -> None:
    assert services().keys() == {"antiphon", "postgres", "vllm"}


def test_only_vllm_needs_a_profile() -> None:
    own = yaml.safe_load(FILE.read_text())["services"]
    assert {name for name, service in own.items() if "profiles" in service} == {"vllm"}


def test_without_a_password_it_does_not_start() -> None:
    with pytest.raises(AssertionError, match="POSTGRES_PASSWORD"):
        run(*compose(), "config", variables={"POSTGRES_PASSWORD": ""})


def test_no_secret_is_in_the_file() -> None:
    for name, service in yaml.safe_load(FILE.read_text())["services"].items():
        for variable, value in service.get("environment", {}).items():
            if "PASSWORD" in variable:
                assert value.startswith("${POSTGRES_PASSWORD:?"), name


def test_each_service_is_watched_and_comes_back() -> None:
    for name, service in services().items():
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"], name


def test_the_server_starts_with_its_settings() -> None:
    server = services()["antiphon"]
    environment = {key: str(value) for key, value in server["environment"].items()}
    settings = load(DEPLOY / "compose/scripted.toml", environment)
    assert settings.store.startswith("postgresql://")
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert "127.0.0.1" in json.dumps(server["ports"])
