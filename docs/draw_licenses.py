"""Draw docs/reference/licenses.md from the metadata of what is installed: `make docs`.

A package whose metadata names no license that we know needs a line in STATED; a license that is
not yet in ALLOWED needs somebody who reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata, version
from pathlib import Path

PAGE = Path(__file__).parent / "reference" / "licenses.md"
LOCK = Path(__file__).parents[1] / "requirements" / "server.txt"
INTRO = """# Licenses

Drawn from the packages' own metadata by `make docs`; a test checks that it is up to date, and that
no other license gets in.

Antiphon is licensed under Apache-2.0. The server installs these packages on Linux and macOS, with
all its extras except `ray` and `vllm`, which bring their own, and `mistral`, which comes with
`vllm` (one of its packages, pycountry, has the license LGPL-2.1-only). The lock file
`requirements/server.txt` has their versions. Identifiers are those of SPDX.

| Package | License |
| --- | --- |
"""

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "CNRI-Python",
        "MIT",
        "MIT-0",
        "PSF-2.0",
        "Zlib",
        "any-OSI",
        # These bind whoever changes their files, not whoever uses them.
        "MPL-1.1",
        "MPL-2.0",
    }
)

IN_WORDS: Mapping[str, str] = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "The BSD 2-Clause License": "BSD-2-Clause",
}
"""What old metadata says in words → the identifier."""

STATED: Mapping[str, str] = {
    "oss-harmony": "Apache-2.0",  # in its LICENSE file
    "justext": "BSD-2-Clause",  # its classifier says only "BSD"
    "protobuf": "BSD-3-Clause",  # "3-Clause BSD License"
    "quickjs-ng": "MIT",  # in its LICENSE file
    "rich-click": "MIT",  # the whole text stands where the name should
    "uvloop": "MIT OR Apache-2.0",  # two classifiers
}
"""Package → its license, where the metadata does not say it in a word."""

OTHER_SYSTEMS = frozenset({"colorama", "httpx2-jsfetch", "pywin32"})
"""Locked, but not for Linux or macOS."""

BACKPORTS = frozenset({"async-timeout"})
"""Locked for an older Python than the one that may draw the page."""

_PACKAGE = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


def license_of(name: str, described: PackageMetadata) -> str:
    """Return a package's license as an SPDX expression. Raises: ValueError if it is unknown."""
    if name in STATED:
        return STATED[name]
    if "License-Expression" in described:
        return described["License-Expression"]
    kinds = [
        each.rpartition(" :: ")[2]
        for each in described.get_all("Classifier") or ()
        if each.startswith("License ::")
    ]
    text = described.get("License", "")
    for words in (text, *kinds):
        if is_allowed(IN_WORDS.get(words, words)):
            return IN_WORDS.get(words, words)
    raise ValueError(f"{name} has the license {text[:80]!r} {kinds}: read it, then name it here")


def is_allowed(expression: str) -> bool:
    """Whether a choice of an SPDX expression has allowed licenses alone.

    >>> [is_allowed(each) for each in ("GPL-3.0-only OR MIT", "MIT AND GPL-3.0-only")]
    [True, False]
    """
    choices = [choice.strip("() ").split(" AND ") for choice in expression.split(" OR ")]
    return any(all(each.strip("() ") in ALLOWED for each in choice) for choice in choices)


def licenses() -> Iterator[tuple[str, str]]:
    """Yield each locked package of the server with its license."""
    for name in sorted(_locked()):
        try:
            yield name, license_of(name, metadata(name))
        except PackageNotFoundError:
            raise ValueError(f"{name} is locked but not installed: make the .venv anew") from None


def other_versions() -> list[str]:
    """Return the installed packages whose version is not a locked one: licenses change with it."""
    locked = _locked()
    return [f"{name} {version(name)}" for name in locked if version(name) not in locked[name]]


def _locked() -> dict[str, set[str]]:
    """Return the locked versions by package; some differ between versions of Python."""
    versions: dict[str, set[str]] = {}
    for name, locked in _PACKAGE.findall(LOCK.read_text(encoding="utf-8")):
        if name not in OTHER_SYSTEMS | BACKPORTS:
            versions.setdefault(name, set()).add(locked)
    return versions


def page() -> str:
    return INTRO + "".join(f"| {name} | {expression} |\n" for name, expression in licenses())


if __name__ == "__main__":
    if others := other_versions():
        print(f"{PAGE.name} stays as it is: {', '.join(others)} is not what requirements/ locks.")
        print("To draw it, remove .venv and run `LOCKED=1 make docs`.")
    else:
        PAGE.write_text(page(), encoding="utf-8")
