"""vLLM's processes log in the format and at the level of this server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.entrypoints.process.vllm_logs import CONFIG_PATH, OPERATORS_OWN, configure_vllm_logs

LOG = """\
import json, logging, logging.config, sys
logging.config.dictConfig(json.load(open(sys.argv[1])))
logging.getLogger("vllm.engine").info("loaded\\nERROR forged")
logging.getLogger("vllm.engine").warning("slow")
"""


@pytest.fixture(autouse=True)
def _undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OPERATORS_OWN:
        monkeypatch.delenv(name, raising=False)


def logged(level: str) -> list[str]:
    """Return what another process logs that reads the configuration, as vLLM's do."""
    with configure_vllm_logs(level):
        command = [sys.executable, "-c", LOG, os.environ[CONFIG_PATH]]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return ran.stderr.splitlines()


def test_its_lines_look_like_ours() -> None:
    first, second, third = logged("info")
    assert first.endswith(" INFO vllm.engine loaded")
    assert second == "    ERROR forged"
    assert third.endswith(" WARNING vllm.engine slow")


def test_its_level_is_that_of_the_server() -> None:
    [line] = logged("warning")
    assert line.endswith("slow")


@pytest.mark.parametrize("name", OPERATORS_OWN)
def test_an_operator_who_configures_vllm_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "own")
    before = dict(os.environ)
    with configure_vllm_logs("info"):
        assert dict(os.environ) == before


def test_nothing_is_left_behind() -> None:
    with configure_vllm_logs("info"):
        file = Path(os.environ[CONFIG_PATH])
        assert json.loads(file.read_text(encoding="utf-8"))["version"] == 1
    assert not file.exists()
    assert CONFIG_PATH not in os.environ
