"""Lines of the log. What a client sent may stand in one, and looks like no other line."""

from __future__ import annotations

import logging
import re

_CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f"  # a terminal does what these say
    "\u2028\u2029"  # ends of lines too, for some
    "\u202a-\u202e\u2066-\u2069]"  # turn round what is read after them
)


class LogLines(logging.Formatter):
    """Begins each record on a line of its own; all further lines of a record are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return as_record(super().format(record))


def as_record(text: str) -> str:
    r"""Return a text of which no part reads as a record of its own.

    >>> as_record("failed: a\r\nINFO all is well\x1b[2K")
    'failed: a\\r\n    INFO all is well\\x1b[2K'
    """
    return _CONTROLS.sub(_escaped, text).replace("\n", "\n    ")


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
