"""The report of `antiphon doctor`: a table for people, or JSON for scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata

import msgspec
from rich.console import Console
from rich.text import Text

from antiphon.entrypoints.commands.doctor.findings import CheckResult, Status
from antiphon.entrypoints.commands.terminal import printable, printable_json

STYLES: Mapping[Status, str] = {
    "ok": "green",
    "warning": "yellow",
    "problem": "bold red",
    "skipped": "dim",
}
STATUS_WIDTH = max(map(len, STYLES))


def print_line(console: Console, result: CheckResult, name_width: int) -> None:
    """Print a result in one line, and what to do in the next."""
    line = Text()
    line.append(f"{result.status:<{STATUS_WIDTH}}", style=STYLES[result.status])
    line.append(f"  {result.check:<{name_width}}  {_in_one_line(result.found)}")
    console.print(line)
    if result.advice:
        indent = " " * (STATUS_WIDTH + name_width + 4)
        console.print(Text(f"{indent}→ {_in_one_line(result.advice)}"))


def print_verdict(console: Console, results: Sequence[CheckResult]) -> None:
    """Print how many results of each kind there are."""
    counts = Counter(result.status for result in results)
    parts = [f"{counts[status]} {status}" for status in STYLES if counts[status]]
    console.print(Text(f"\n{', '.join(parts)}"))


def print_json(console: Console, results: Sequence[CheckResult], exit_code: int) -> None:
    """Print one object: the version, the exit code, and the list `checks`."""
    report = {
        "antiphon": metadata.version("antiphon"),
        "exit_code": exit_code,
        "checks": results,
    }
    console.print(Text(printable_json(msgspec.json.format(msgspec.json.encode(report)).decode())))


def _in_one_line(text: str) -> str:
    return printable(text).replace("\n", " ")
