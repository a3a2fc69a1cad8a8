"""Run checks one after the other, each within its time limit and in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from antiphon.domain.errors import AntiphonError
from antiphon.entrypoints.commands.doctor.findings import (
    Check,
    CheckResult,
    Finding,
    Findings,
    Installation,
    problem,
)

CANCEL_GRACE_S = 3.0
"""Seconds that a check has to clean up after its time limit."""

logger = logging.getLogger("antiphon.doctor")


def run_checks(
    checks: Sequence[Check],
    installation: Installation,
    hide: Callable[[str], str],
    *,
    started: Callable[[Check], None] = lambda _: None,
    grace_s: float = CANCEL_GRACE_S,
) -> Iterator[CheckResult]:
    """Yield the results of each check as it ends. `hide` removes secrets from a sentence."""
    for check in checks:
        started(check)
        begun_at = time.monotonic()
        findings = _run(check, installation, grace_s)
        seconds = round(time.monotonic() - begun_at, 3)
        for finding in findings:
            yield CheckResult(
                check=check.name,
                status=finding.status,
                found=hide(finding.found),
                advice=hide(finding.advice),
                seconds=seconds,
            )


def _run(check: Check, installation: Installation, grace_s: float) -> Sequence[Finding]:
    findings: list[Finding] = []
    # A daemon, since a look-up or a file system that hangs must not keep the process.
    thread = threading.Thread(
        target=lambda: findings.extend(_findings_of(check, installation)),
        name=f"antiphon-doctor-{check.name}",
        daemon=True,
    )
    thread.start()
    thread.join(check.limit_s + grace_s)
    return list(findings) if not thread.is_alive() else [_too_slow(check)]


def _findings_of(check: Check, installation: Installation) -> Sequence[Finding]:
    try:
        found = check.run(installation)
        if isinstance(found, Awaitable):
            found = asyncio.run(_within(check.limit_s, found))
        return list(found)
    except TimeoutError:
        return [_too_slow(check)]
    except AntiphonError as error:
        return [problem(str(error))]
    except Exception as error:  # a check looks at what is broken: it may fail in any way
        logger.debug("a check failed", exc_info=True)
        return [problem(f"The check failed with {type(error).__name__}: {error}")]


async def _within(limit_s: float, findings: Awaitable[Findings]) -> Findings:
    async with asyncio.timeout(limit_s):
        return await findings


def _too_slow(check: Check) -> Finding:
    return problem(
        f"There was no answer within {check.limit_s:g} seconds.",
        "Look at what this check calls: a network, a server or a disk does not answer.",
    )
