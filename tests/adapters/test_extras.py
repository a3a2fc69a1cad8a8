"""What a message says about installing an optional package works where there is no release."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from antiphon.adapters.extras import install_command

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS = {
    extra: packages
    for extra, packages in PROJECT["optional-dependencies"].items()
    if extra
    not in ("browser", "dev", "clients", "deploy", "security")  # for those who change this project
}


def name(requirement: str) -> str:
    return requirement.replace("_", "-").lower()


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_names_this_python_and_the_packages_of_the_extra(extra: str) -> None:
    python, *pip, first = shlex.split(install_command(extra))[:5]
    assert (python, pip) == (sys.executable, ["-m", "pip", "install"])
    packages = [first, *shlex.split(install_command(extra))[5:]]
    assert sorted(map(name, packages)) == sorted(map(name, EXTRAS[extra]))
