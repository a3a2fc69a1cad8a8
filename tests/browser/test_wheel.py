"""A wheel has the console: it is built, and its files are those of the folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from antiphon.entrypoints.http.console.pages import FOLDER

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
FOLDER_IN_WHEEL = "antiphon/entrypoints/http/console/static/"


def test_a_wheel_has_every_file_of_the_console(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(tmp_path), "."]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("no package index has hatchling, which builds the wheel")
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("antiphon-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for file in (each for each in FOLDER.rglob("*") if each.is_file()):
            name = FOLDER_IN_WHEEL + file.relative_to(FOLDER).as_posix()
            assert archive.read(name) == file.read_bytes()
