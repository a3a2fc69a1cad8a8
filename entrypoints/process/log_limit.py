"""A limit for warnings and errors: whoever sends requests must not be able to fill the log."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

BURST = 10
"""Records of one kind that are logged within WINDOW_S. The others are counted."""
WINDOW_S = 60.0
MAX_KINDS = 1000
"""Kinds that are counted apart within WINDOW_S."""

OURS = "antiphon"
UNLIMITED = ("antiphon.access",)
"""Loggers with one line for each request anyway."""

IS_COUNT = "is_count"
Kind = tuple[str, int, str]


class LogLimit(logging.Filter):
    """Lets the first warnings and errors of each kind pass, and then logs how many more there were.

    A kind is a logger with a message, before its arguments are put in. The count comes with the
    first line of the log after WINDOW_S.
    """

    def __init__(
        self, handler: logging.Handler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._handler = handler
        self._clock = clock
        self._counts: dict[Kind, int] = {}
        self._ends_at = math.inf

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now >= self._ends_at:
            self._end_window()
        if record.levelno < logging.WARNING or not _is_limited(record):
            return True
        if self._ends_at == math.inf:
            self._ends_at = now + WINDOW_S
        kind = (record.name, record.levelno, str(record.msg))
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            kind = (OURS, logging.WARNING, "of other kinds")
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return count <= BURST

    def _end_window(self) -> None:
        counts, self._counts, self._ends_at = self._counts, {}, math.inf
        for (name, level, message), count in counts.items():
            if count > BURST:
                text = "%d more lines like this one within %g s: %s"
                arguments = (count - BURST, WINDOW_S, message)
                record = logging.LogRecord(name, level, __file__, 0, text, arguments, None)
                setattr(record, IS_COUNT, True)
                self._handler.handle(record)


def _is_limited(record: logging.LogRecord) -> bool:
    if hasattr(record, IS_COUNT) or record.name in UNLIMITED:
        return False
    return record.name == OURS or record.name.startswith(f"{OURS}.")
