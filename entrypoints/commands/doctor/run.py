"""Run all checks and print what they find."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rich.console import Console

from antiphon.entrypoints.commands.doctor import access, machine, models, storage, tools
from antiphon.entrypoints.commands.doctor.findings import Check, CheckResult, Installation
from antiphon.entrypoints.commands.doctor.report import print_json, print_line, print_verdict
from antiphon.entrypoints.commands.doctor.run_checks import run_checks
from antiphon.entrypoints.commands.doctor.secret_values import hide_secrets

EXIT_PROBLEMS = 1

CHECKS: Sequence[Check] = (
    *access.CHECKS,
    *machine.CHECKS,
    *storage.CHECKS,
    *tools.CHECKS,
    *models.CHECKS,
)
"""In this order: what takes long comes last."""


def examine(installation: Installation, *, as_json: bool, fail_on_warnings: bool) -> int:
    """Print the results of all checks, and return the exit code."""
    logging.disable(logging.CRITICAL)  # the findings say it in words
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    width = max(len(check.name) for check in CHECKS)

    def show_progress(check: Check) -> None:
        if progress.is_terminal and not as_json:
            progress.print(f"checking {check.name} …", end="\r", style="dim")

    results: list[CheckResult] = []
    hide = hide_secrets(installation.settings)
    for result in run_checks(CHECKS, installation, hide, started=show_progress):
        results.append(result)
        if not as_json:
            print_line(console, result, width)
    exit_code = exit_code_of(results, fail_on_warnings=fail_on_warnings)
    if as_json:
        print_json(console, results, exit_code)
    else:
        print_verdict(console, results)
    return exit_code


def exit_code_of(results: Sequence[CheckResult], *, fail_on_warnings: bool) -> int:
    """Return 1 if there is a problem, or a warning that counts as one, otherwise 0."""
    failing = {"problem", "warning"} if fail_on_warnings else {"problem"}
    return EXIT_PROBLEMS if any(each.status in failing for each in results) else 0
