"""The command that installs an optional dependency, for messages."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata

_EXTRA = re.compile(
    r"""^(?P<package>[^;\s]++(?:\s++[^;\s]++)*+)\s*;.*\bextra\s*==\s*['"](?P<extra>[^'"]+)['"]"""
)


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra of this package."""
    matches = (_EXTRA.match(line) for line in metadata.requires("antiphon") or ())
    return [match["package"] for match in matches if match and match["extra"] == extra]


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    It names the packages and not `antiphon[extra]`, so that it also works in a checkout without a
    release. It names this Python, because the shell's `pip` may belong to another one.
    """
    return shlex.join([sys.executable, "-m", "pip", "install", *packages_of(extra)])
