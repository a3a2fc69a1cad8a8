"""A checkout whose links are files of text, as Git writes it without core.symlinks, and a zip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("domain", "application", "adapters", "entrypoints", "testing")
URL = re.compile(r"http://[\d.]+:\d+")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("git"), reason="needs Git"),
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone, not an archive"),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in Git's index, written without links."""
    folder = tmp_path_factory.mktemp("checkout")
    write = ("checkout-index", "--all", f"--prefix={folder}/")
    subprocess.run(["git", "-c", "core.symlinks=false", *write], cwd=ROOT, check=True)
    return folder


def environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout / "src")}


def test_its_links_are_files_of_text(checkout: Path) -> None:
    for layer in LAYERS:
        assert (checkout / "src" / "antiphon" / layer).read_text() == f"../../{layer}"


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_is_imported_from_its_folder(checkout: Path, layer: str) -> None:
    program = f"import antiphon.{layer} as layer; print(layer.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(checkout),
        cwd=checkout.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(checkout / layer / "__init__.py")


def test_it_serves_a_response(checkout: Path, tmp_path: Path) -> None:
    serve = ("-m", "antiphon.entrypoints.cli", "serve", "--port", "0", "--store", "memory")
    with subprocess.Popen(
        [sys.executable, *serve],
        env=environment(checkout),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            found = next(found for line in server.stdout if (found := URL.search(line)))
            body = {"model": "scripted", "input": "Say hello."}
            answer = httpx.post(f"{found[0]}/v1/responses", json=body, timeout=30)
        finally:
            server.terminate()
    assert answer.json()["output"][0]["content"][0]["text"] == "Echo: Say hello."


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_turns_the_files_into_links_for_type_checkers(checkout: Path) -> None:
    subprocess.run(["make", "links"], cwd=checkout, check=True)
    for layer in LAYERS:
        link = checkout / "src" / "antiphon" / layer
        assert link.readlink() == Path("..", "..", layer)
        assert (link / "__init__.py").is_file()
