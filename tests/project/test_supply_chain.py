"""What is installed is locked with hashes, fits pyproject.toml, and has an accepted license."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = ("server.txt", "dev.txt")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


@cache
def module(path: str) -> ModuleType:
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def locked(name: str) -> Iterator[tuple[str, str]]:
    yield from module("requirements/lock.py").packages((ROOT / "requirements" / name).read_text())


def versions(*names: str) -> Mapping[str, set[Version]]:
    """Return the locked versions: there are two where a release ends the support of a Python."""
    found: dict[str, set[Version]] = {}
    for package, lines in (each for name in names for each in locked(name)):
        found.setdefault(package, set()).add(Version(lines.split("==")[1].split()[0]))
    return found


def required(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    found = [Requirement(text) for text in texts]
    return [each for each in found if each.name != "antiphon"]


@pytest.mark.parametrize("name", [*LOCKS, "build.txt"])
def test_a_lock_has_versions_and_hashes_and_names_no_place(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    assert "://" not in text
    assert "index" not in {line.strip().partition(" ")[0].lstrip("-") for line in text.splitlines()}
    for package, lines in locked(name):
        first, *others = lines.splitlines()
        assert first.startswith(f"{package}=="), first
        hashes = [line for line in others if not line.lstrip().startswith("#")]
        assert hashes, package
        assert all(HASH.fullmatch(line) for line in hashes), package


def test_no_package_is_locked_twice() -> None:
    server, dev = (set(versions(name)) for name in LOCKS)
    assert server & dev == set()


def test_the_locks_are_fresh() -> None:
    extras = module("requirements/lock.py").server_extras()
    for names, requirements in (
        (["server.txt"], required(*extras)),
        (LOCKS, required(*extras, "dev")),
    ):
        found = versions(*names)
        for each in requirements:
            name = canonicalize_name(each.name)
            assert name in found, f"{each} is not locked: run `make lock`"
            for version in found[name]:
                assert version in each.specifier, f"{each} is locked as {version}: `make lock`"


def test_what_builds_the_wheel_is_locked() -> None:
    found = versions("build.txt")
    for text in module("requirements/lock.py").build_requirements():
        each = Requirement(text)
        [version] = found[canonicalize_name(each.name)]
        assert version in each.specifier, f"{each} is locked as {version}: `make lock`"


def test_what_is_locked_is_still_required() -> None:
    wanted = {
        canonicalize_name(each.name)
        for each in required(*module("requirements/lock.py").server_extras(), "dev")
    }
    direct = {
        package
        for name in LOCKS
        for package, lines in locked(name)
        if "antiphon (pyproject.toml)" in lines
    }
    assert direct <= wanted, "run `make lock`"


def test_the_page_of_licenses_is_fresh() -> None:
    drawing = module("docs/draw_licenses.py")
    if others := drawing.other_versions():
        pytest.skip(f"not the locked versions: {', '.join(others)} (LOCKED=1 installs them)")
    assert drawing.PAGE.read_text() == drawing.page(), "run `make docs`"


def test_no_license_gets_in_unread() -> None:
    drawing = module("docs/draw_licenses.py")
    refused = [(name, text) for name, text in drawing.licenses() if not drawing.is_allowed(text)]
    assert refused == []


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("MIT AND Zlib", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("UNKNOWN", False),
        ("", False),
    ],
)
def test_a_license_is_accepted_if_one_of_its_choices_is(expression: str, is_allowed: bool) -> None:
    assert module("docs/draw_licenses.py").is_allowed(expression) is is_allowed
