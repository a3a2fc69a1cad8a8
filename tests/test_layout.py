"""The layout keeps its promises: small folders, modules that fit on some pages, small services."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("domain", "application", "adapters", "entrypoints", "testing")
OTHERS = ("tests", "benchmarks", "examples", "docs")
MAX_ENTRIES = 24
MAX_SUBJECTS = 12
"""Of the application, whose folders are what a newcomer reads first."""

LISTS = frozenset(
    {
        "adapters/formats/chat_template/families",
        "docs/decisions",
        "docs/guides",
        "tests/golden/chat_template",
        "tests/golden/flows",
        "tests/golden/prompts",
        "tests/golden/streams",
    }
)
"""Folders of like things, which nobody reads one by one."""

MAX_LINES = 600
MAX_PARAMETERS = 8


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def entries_of(folder: Path) -> list[Path]:
    """Return what a reader sees in a folder: no caches, and no packages of Node."""
    unseen = ("__pycache__", "node_modules")
    return [each for each in folder.iterdir() if each.name[0] != "." and each.name not in unseen]


def folders_in(folder: Path) -> Iterator[Path]:
    yield folder
    for entry in entries_of(folder):
        if entry.is_dir():
            yield from folders_in(entry)


@pytest.mark.parametrize("top", [*PRODUCT, *OTHERS])
def test_no_folder_has_more_entries_than_a_reader_can_look_over(top: str) -> None:
    sizes = {name_of(folder): len(entries_of(folder)) for folder in folders_in(ROOT / top)}
    too_large = {name for name, size in sizes.items() if size > MAX_ENTRIES}
    assert too_large - LISTS == set()


def test_the_application_has_at_most_a_dozen_subjects() -> None:
    entries = entries_of(ROOT / "application")
    assert len(entries) <= MAX_SUBJECTS, sorted(entries)


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules(*PRODUCT, *OTHERS)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_constructor_has_more_than_eight_parameters(folder: str) -> None:
    too_many = {
        f"{name_of(path)}:{node.lineno}": count
        for path in modules(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        if (count := len([*node.args.args, *node.args.kwonlyargs]) - 1) > MAX_PARAMETERS
    }
    assert too_many == {}


NAMED_TWICE = {
    "ArgumentsDelta": "of a model and of the wire: both modules are imported whole, as d and e",
    "ReasoningDelta": "see ArgumentsDelta",
    "RefusalDelta": "see ArgumentsDelta",
    "SummaryDelta": "see ArgumentsDelta",
    "TextDelta": "see ArgumentsDelta",
    "Batch": "of requests, as the API names it, and of texts that are encoded together",
    "CreateFile": "an operation of the API, and one of a patch, as both are specified",
    "DeleteFile": "see CreateFile",
}
SHAPES = "entrypoints/http/api/shapes.py"
"""Describes the objects of the API by the names of its specification."""


def test_a_public_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in modules(*PRODUCT):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    twice = {name: paths for name, paths in places.items() if len(set(paths) - {SHAPES}) > 1}
    assert {name: paths for name, paths in twice.items() if name not in NAMED_TWICE} == {}
    assert NAMED_TWICE.keys() <= twice.keys()


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_docstring_begins_with_what(folder: str) -> None:
    """Its first line could stand in a reference manual: a noun, or a verb."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{name_of(path)}: {docstring.splitlines()[0]}"
        for path in modules(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, documented)
        if (docstring := ast.get_docstring(node) or "").startswith("What ")
    ]
    assert found == []
