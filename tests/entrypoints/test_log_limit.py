"""Whoever sends requests cannot fill the log with warnings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from antiphon.entrypoints.process.log_limit import BURST, MAX_KINDS, WINDOW_S, LogLimit


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Log:
    """A log with its limit and a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.handler = Lines()
        self.handler.addFilter(LogLimit(self.handler, lambda: self.now_s))

    @property
    def lines(self) -> list[str]:
        return self.handler.lines

    def logger(self, name: str) -> logging.Logger:
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(self.handler)
        return logger


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    for name in ("antiphon.test_a", "antiphon.access", "other"):
        logger = logging.getLogger(name)
        logger.removeHandler(log.handler)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


def test_the_first_lines_of_a_kind_are_logged_and_then_a_count(log: Log) -> None:
    logger = log.logger("antiphon.test_a")
    for number in range(1000):
        logger.warning("a URL of %s could not be fetched", number)
    assert len(log.lines) == BURST
    log.now_s = WINDOW_S
    logger.info("all is well")
    assert log.lines[BURST:] == [
        "WARNING 990 more lines like this one within 60 s: a URL of %s could not be fetched",
        "INFO all is well",
    ]
    logger.warning("a URL of %s could not be fetched", 0)
    assert len(log.lines) == BURST + 3


def test_each_kind_has_its_own_lines_and_what_is_no_warning_is_not_limited(log: Log) -> None:
    logger = log.logger("antiphon.test_a")
    for _ in range(2 * BURST):
        logger.warning("one")
        logger.error("one")
        logger.info("one")
    logger.warning("another")
    assert log.lines.count("WARNING one") == log.lines.count("ERROR one") == BURST
    assert log.lines.count("INFO one") == 2 * BURST
    assert log.lines[-1] == "WARNING another"


@pytest.mark.parametrize("name", ["antiphon.access", "other"])
def test_the_lines_of_requests_and_of_other_programs_are_not_limited(log: Log, name: str) -> None:
    logger = log.logger(name)
    for _ in range(2 * BURST):
        logger.error("failed")
    assert len(log.lines) == 2 * BURST


def test_any_number_of_kinds_takes_little_memory_and_few_lines(log: Log) -> None:
    logger = log.logger("antiphon.test_a")
    for number in range(3 * MAX_KINDS):
        logger.warning(f"kind {number}")
    assert len(log.lines) == MAX_KINDS + BURST
    log.now_s = WINDOW_S
    logger.info("all is well")
    assert "of other kinds" in log.lines[-2]
