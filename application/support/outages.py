"""What fails again and again is told of once, and once more when it is over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Outages:
    """`what` is the sentence of the log: it says what does not happen meanwhile."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger = logger
        self._what = what
        self._is_out = False

    @contextmanager
    def log_outages(self) -> Iterator[None]:
        """Log what the block raises, unless the time before failed too; never raise it."""
        try:
            yield
        except Exception:
            if not self._is_out:
                self._logger.exception(self._what)
            self._is_out = True
            return
        if self._is_out:
            self._logger.info("no longer: %s", self._what)
        self._is_out = False
