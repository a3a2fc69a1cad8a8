"""How to install an optional dependency: one command, the same in every message."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata

_EXTRA = re.compile(r"""^(?P<package>[^;]+?)\s*;.*\bextra\s*==\s*['"](?P<extra>[^'"]+)['"]""")


def packages_of(extra: str) -> list[str]:
    """Return the requirements of an extra of this package."""
    found = (_EXTRA.match(line) for line in metadata.requires("antiphon") or ())
    return [match["package"] for match in found if match is not None and match["extra"] == extra]


def install_command(extra: str) -> str:
    """Return the command that installs an extra beside this server.

    It names the packages, not `antiphon[extra]`: that works in a checkout as well, where there is
    no release to install. It names this Python, since the shell's `pip` may be another's.
    """
    return shlex.join([sys.executable, "-m", "pip", "install", *packages_of(extra)])
