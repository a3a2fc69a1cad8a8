"""Findings of a check, and what it looks at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from antiphon.entrypoints.settings import Settings

Status = Literal["ok", "warning", "problem", "skipped"]

DEFAULT_LIMIT_S = 15.0


class Finding(Struct, frozen=True, kw_only=True):
    """One fact in a sentence, and what to do about it; "" if there is nothing to do."""

    status: Status
    found: str
    advice: str = ""


def ok(found: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(status="ok", found=found)


def skipped(found: str) -> Finding:
    """Return why there was nothing to check."""
    return Finding(status="skipped", found=found)


def warning(found: str, advice: str) -> Finding:
    """Return a finding that a server can run with."""
    return Finding(status="warning", found=found, advice=advice)


def problem(found: str, advice: str = "") -> Finding:
    """Return a finding that stops the server or one of its features."""
    return Finding(status="problem", found=found, advice=advice)


class Installation(Struct, frozen=True, kw_only=True):
    """The subject of the checks: the settings, and where they came from.

    `variables` are the names of the environment variables that set something, `options` the paths
    of the settings on the command line. `quick` leaves out what starts or calls a model.
    """

    settings: Settings
    file: Path | None = None
    variables: Sequence[str] = ()
    options: Sequence[str] = ()
    quick: bool = False


Findings = Iterable[Finding]


class Check(Struct, frozen=True, kw_only=True):
    """A check that ends within `limit_s` seconds. `run` may block: it has a thread of its own."""

    name: str
    run: Callable[[Installation], Findings | Awaitable[Findings]]
    limit_s: float = DEFAULT_LIMIT_S


class CheckResult(Struct, frozen=True, kw_only=True):
    """A finding with the name of its check, as `--json` prints it."""

    check: str
    status: Status
    found: str
    advice: str
    seconds: float
