"""Report the runs that have ended in batches (docs/decisions/0119)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from antiphon.application.ports import EndedRun, ReportRun

logger = logging.getLogger("antiphon.runs")

MAX_WAITING = 64
"""Spans of the runs that wait; most runs have two. More of them would hold up the event loop."""
INTERVAL_S = 1.0
"""The longest time that a run waits."""


class EndedRuns:
    """Tells `reports` of each run that has ended: of many in a row, and of all at a `flush`."""

    def __init__(self, reports: Sequence[ReportRun]) -> None:
        self._reports = reports
        self._waiting: list[EndedRun] = []
        self._waiting_spans = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ended: EndedRun) -> None:
        self._waiting.append(ended)
        self._waiting_spans += ended.spans
        if self._waiting_spans >= MAX_WAITING:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._flush_late)

    def flush(self) -> None:
        waiting, self._waiting, self._waiting_spans = self._waiting, [], 0
        for report in self._reports:
            for ended in waiting:
                try:
                    report(ended)
                except Exception:  # a bug in one report must cost no other
                    logger.exception("response %s could not be reported", ended.response_id)

    def _flush_late(self) -> None:
        self._timer = None
        self.flush()
