"""Log a repeated failure once, and once more when it is over."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.domain.errors import EngineDead


class Outages:
    """Logs the failures of one activity; `consequence` says in the log what does not happen."""

    def __init__(self, logger: logging.Logger, consequence: str) -> None:
        self._logger = logger
        self._consequence = consequence
        self._is_failing = False

    @contextmanager
    def log_outages(self) -> Iterator[None]:
        """Log an exception of the block, unless the previous block failed too; never raise it."""
        try:
            yield
        except Exception as error:
            if not self._is_failing:
                # Why an engine is dead is in the log already: a traceback would look like a bug.
                stack = None if isinstance(error, EngineDead) else error
                self._logger.log(logging.ERROR, "%s: %s", self._consequence, error, exc_info=stack)
            self._is_failing = True
            return
        if self._is_failing:
            self._logger.info("recovered: %s", self._consequence)
        self._is_failing = False
