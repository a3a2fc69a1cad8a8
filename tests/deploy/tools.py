"""The programs that read the files of deploy/, and those files as they read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LIMIT_S = 50

Document = dict[str, Any]


def program(name: str) -> str:
    """Return the path of a program, or skip the test: `make test-deploy` installs some of them."""
    found = shutil.which(name, path=os.pathsep.join(_folders()))
    if found is None:
        pytest.skip(f"there is no {name} on this machine")
    return found


def _folders() -> list[str]:
    beside_python = str(Path(sys.executable).parent)
    return [beside_python, *os.environ["PATH"].split(os.pathsep), "/usr/sbin", "/sbin"]


def run(*command: str, variables: Mapping[str, str] | None = None) -> str:
    """Return what a command prints. It must succeed."""
    done = subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def documents(text: str) -> list[Document]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def of_kind(found: list[Document], kind: str) -> Document:
    [document] = [each for each in found if each["kind"] == kind and _is_ours(each)]
    return document


def _is_ours(document: Document) -> bool:
    return not str(document["metadata"]["name"]).endswith("postgres")
