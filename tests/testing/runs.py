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
LIMIT_S = 300

STRICT = ("-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function")

ONLY_FOR_OUR_TESTS = ("hypothesis", "jsonschema", "lark", "pytest_timeout", "xdist")

_OUTCOMES = re.compile(r"(\d+) (passed|failed|error|skipped|warning)")


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


def run_pytest(folder: Path, *arguments: str, plugins: tuple[str, ...] | None = None) -> Outcome:
    """Run pytest with these plugins alone, or with all that are installed; warnings are errors."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    if plugins is not None:
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    loaded = [part for plugin in plugins or () for part in ("-p", plugin)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "filterwarnings=error", *loaded, *arguments],
        cwd=folder,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    last = done.stdout.strip().rpartition("\n")[2]
    counts = {kind: int(count) for count, kind in _OUTCOMES.findall(last)}
    return Outcome(counts, done.stdout + done.stderr)
