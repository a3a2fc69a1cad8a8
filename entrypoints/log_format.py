"""The log format. Text from clients cannot forge log records."""

from __future__ import annotations

import logging
import re

_CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f"  # terminals obey these
    "\u2028\u2029"  # some programs end lines at these
    "\u202a-\u202e\u2066-\u2069]"  # change the direction of the text after them
)


class LogFormatter(logging.Formatter):
    """A formatter that indents every line of a record except the first."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return escape_record(super().format(record))


def escape_record(text: str) -> str:
    r"""Return the text with control characters escaped and all lines but the first indented.

    >>> escape_record("failed: a\r\nINFO all is well\x1b[2K")
    'failed: a\\r\n    INFO all is well\\x1b[2K'
    """
    return _CONTROLS.sub(_escape, text).replace("\n", "\n    ")


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
