"""Mypy refuses each mistake in the wiring: one is made wherever there could be one, in a copy."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENTRYPOINTS = ROOT / "entrypoints"
WIRING = ("access", "admission", "code", "file_search", "guards", "media", "relaying", "tools")
API = tuple(
    ENTRYPOINTS / "http" / "api" / f"{name}.py"
    for name in (
        "containers/routes",
        "containers/skills",
        "conversations",
        "files",
        "vector_stores",
    )
)
MODULES = (
    ENTRYPOINTS / "services.py",
    ENTRYPOINTS / "server" / "lifetime.py",
    *(ENTRYPOINTS / "wiring" / f"{name}.py" for name in (*WIRING, "traces", "transport")),
    *API,
)
UNTYPED = {*dir(builtins), "load_instance", "load_port", "replace"}
"""Calls that build nothing, that copy, and those of a class of the operator, which says what it
takes."""

Mistake = Callable[[ast.Call], None]


def misspellings(call: ast.Call) -> Iterator[Mistake]:
    for index, keyword in enumerate(call.keywords):
        if keyword.arg is not None:

            def misspell(copy: ast.Call, index: int = index) -> None:
                copy.keywords[index].arg = f"{copy.keywords[index].arg}z"

            yield misspell


def swaps(call: ast.Call) -> Iterator[Mistake]:
    for index in range(len(call.args) - 1):

        def swap(copy: ast.Call, index: int = index) -> None:
            copy.args[index : index + 2] = reversed(copy.args[index : index + 2])

        yield swap


def is_wiring(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name not in UNTYPED and not name.startswith("logger.")


def calls_in(tree: ast.Module, path: Path) -> list[ast.Call]:
    """Return the calls that build something: those of a controller's services, not its handlers."""
    nodes = tree.body if path not in API else [n for n in tree.body if _is_services(n)]
    return [node for n in nodes for node in ast.walk(n) if isinstance(node, ast.Call)]


def _is_services(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and node.name.endswith("Services")


def write_copies(folder: Path, mistakes: Callable[[ast.Call], Iterator[Mistake]]) -> dict[str, str]:
    """Write a copy of its module for each mistake; return the wrong call of each copy."""
    wrong = {}
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        for number, call in enumerate(calls_in(ast.parse(source), path)):
            for make in mistakes(call) if is_wiring(call) else ():
                tree = ast.parse(source)
                copy = calls_in(tree, path)[number]
                make(copy)
                name = f"copy_{len(wrong)}"
                wrong[name] = f"{path.name}: {ast.unparse(copy)}"
                (folder / f"{name}.py").write_text(ast.unparse(tree), encoding="utf-8")
    return wrong


def accepted_by_mypy(folder: Path, wrong: dict[str, str]) -> list[str]:
    """Return the calls that mypy sees no mistake in. It sees none in the modules as they are."""
    for path in MODULES:
        source = ast.unparse(ast.parse(path.read_text(encoding="utf-8")))
        (folder / path.name).write_text(source, encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    files = [str(file) for file in folder.iterdir()]
    told = subprocess.run([*mypy, *files], capture_output=True, text=True, check=False, cwd=ROOT)
    refused = {Path(line.partition(":")[0]).stem for line in told.stdout.splitlines()}
    assert refused.isdisjoint(path.stem for path in MODULES), told.stdout
    return [call for name, call in wrong.items() if name not in refused]


def test_a_misspelt_keyword_is_refused(tmp_path: Path) -> None:
    wrong = write_copies(tmp_path, misspellings)
    assert len(wrong) > 200
    assert accepted_by_mypy(tmp_path, wrong) == []


def test_two_swapped_arguments_are_refused(tmp_path: Path) -> None:
    wrong = write_copies(tmp_path, swaps)
    assert len(wrong) > 150
    assert accepted_by_mypy(tmp_path, wrong) == []
