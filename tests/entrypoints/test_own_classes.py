"""`--tool` and `--store` with the operator's own classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOOLS = """\
from antiphon.application.ports import ToolServer

class Mine(ToolServer):
    label = "mine"

    def session(self):
        raise NotImplementedError

class Broken(Mine):
    def __init__(self):
        raise ValueError("there is no map.")

class Choosy(Mine):
    def __init__(self, folder):
        self.folder = folder

class Nameless:
    pass
"""


def antiphon(folder: Path, *arguments: str) -> list[str]:
    """Return the installed command, which does not search the working folder by itself."""
    command = Path(sys.executable).with_name("antiphon")
    return [str(command), "serve", "--port", "0", "--data-dir", str(folder), *arguments]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("ANTIPHON_", "PYTHONPATH"))}


def refusal(folder: Path, *arguments: str) -> str:
    """Return the error of a server that does not start."""
    ran = subprocess.run(
        antiphon(folder, *arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 2, ran.stderr
    return ran.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_tools.py").write_text(TOOLS)
    return tmp_path


def test_a_class_in_the_working_folder_is_found(tmp_path: Path) -> None:
    process = subprocess.Popen(
        antiphon(tmp_path, "--store", "memory", "--tool", "examples.tools:Lengths"),
        cwd=ROOT,
        env=environment(),
        text=True,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if line.startswith("antiphon "))
        api = ready.partition(" url: ")[2].partition(";")[0]
        body = {
            "model": "scripted",
            "input": '@@script [{"mcp": "convert", "args": {"value": 1, "unit": "km", "into": "m"}}'
            ', {"say": "so far"}]',
            "tools": [{"type": "mcp", "server_label": "lengths", "require_approval": "never"}],
        }
        made = httpx.post(f"{api}/responses", json=body, timeout=30).json()
        call = next(item for item in made["output"] if item["type"] == "mcp_call")
        assert call["output"] == "1000 m"
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ("--tool", "my_tools:Broken"),
            "The tool server 'my_tools:Broken' cannot be constructed: ValueError: there is no map "
            "({folder}/my_tools.py, line 11).",
        ),
        (
            ("--store", "my_tools:Broken"),
            "The store 'my_tools:Broken' cannot be constructed: ValueError: there is no map "
            "({folder}/my_tools.py, line 11).",
        ),
        (
            ("--tool", "my_tools:Choosy"),
            "The tool server 'my_tools:Choosy' cannot be constructed: TypeError: "
            "Choosy.__init__() missing 1 required positional argument: 'folder'.",
        ),
        (
            ("--tool", "my_tools:Nameless"),
            "The tool server 'my_tools:Nameless' has no label: give the class one, or use "
            "--tool LABEL=my_tools:Nameless.",
        ),
        (
            ("--tool", "my_tols:Mine"),
            "The tool server 'my_tols:Mine' cannot be loaded: ModuleNotFoundError: "
            "No module named 'my_tols'.",
        ),
        (
            ("--tool", "my_tools:Yours"),
            "The tool server 'my_tools:Yours' cannot be loaded: AttributeError: "
            "module 'my_tools' has no attribute 'Yours'.",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_in_one_sentence(
    folder: Path, arguments: tuple[str, ...], error: str
) -> None:
    assert refusal(folder, *arguments) == f"antiphon: {error.format(folder=folder)}\n"


def test_a_module_that_fails_on_import_is_refused_in_one_sentence(folder: Path) -> None:
    (folder / "torn.py").write_text("import json\n\njson.loads('{')\n")
    error = refusal(folder, "--store", "torn:Store")
    assert error.startswith("antiphon: The store 'torn:Store' cannot be loaded: JSONDecodeError: ")
    assert len(error.splitlines()) == 1


def test_a_file_in_the_working_folder_hides_no_package_of_the_server(folder: Path) -> None:
    (folder / "redis.py").write_text("raise SystemExit('the wrong redis')\n")
    code = (
        "from antiphon.entrypoints.wiring.own_classes import load_instance\n"
        "load_instance('my_tools:Mine', what='The tool server')\n"
        "import redis\n"
        "print(redis.__file__)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],  # like the command, without the working folder
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "site-packages" in ran.stdout
