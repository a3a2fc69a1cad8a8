"""pytest in a process and a folder of its own, as a user of Antiphon runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

ONLY_FOR_OUR_TESTS = ("hypothesis", "jsonschema", "lark", "pytest_timeout", "xdist")

_OUTCOMES = re.compile(r"(\d+) (passed|failed|error|skipped|warning)")
_FILE = re.compile(
    r"^<!-- file: (?P<path>\S+) -->\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Outcome(NamedTuple):
    """What pytest said in its last line, and all that it said."""

    counts: Mapping[str, int]
    text: str

    @property
    def passed(self) -> int:
        """The number of passed tests, where nothing else happened."""
        assert self.counts.keys() == {"passed"}, self.text
        return self.counts["passed"]


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run_pytest(folder: Path, *arguments: str, plugins: tuple[str, ...] = ()) -> Outcome:
    """Run pytest with these plugins alone, in strict asyncio mode, warnings being errors."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    loaded = [part for plugin in plugins for part in ("-p", plugin)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "filterwarnings=error", *loaded, *arguments],
        cwd=folder,
        env={**clean, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    text = done.stdout + done.stderr
    last = done.stdout.strip().rpartition("\n")[2]
    return Outcome({kind: int(count) for count, kind in _OUTCOMES.findall(last)}, text)


def page(name: str) -> Path:
    """Return the page of the documentation, in whichever folder it is."""
    return next((ROOT / "docs").rglob(name))


def files_of(page: Path) -> dict[str, str]:
    """Return the files that a page shows, by the paths in the comments before them."""
    return {found["path"]: found["text"] for found in _FILE.finditer(page.read_text("utf-8"))}
