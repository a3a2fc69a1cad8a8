"""The log formats: lines for people, and JSON. Text from clients cannot forge log records."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.application.telemetry.log_context import REQUEST_ID, RESPONSE_ID
from antiphon.entrypoints.process.log_limit import LogLimit

_CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f"  # terminals obey these
    "\u2028\u2029"  # some programs end lines at these
    "\u202a-\u202e\u2066-\u2069]"  # change the direction of the text after them
)
_RESPONSE = re.compile(r"\bresp_[0-9A-Za-z]+")

LIBRARIES = ("uvicorn", "httpx")
"""Loggers whose `info` is ours for `debug`: the banner tells of the start, and each request that
`httpx` sends would be a line."""

BATCH_S = 0.05
MAX_WAITING = 256
MAX_CHARS = 4096
"""Lines that wait to be written together, and how long the text of one may be. `--log-outputs` logs
whole responses: they do not wait."""

IDS = "ids"
"""The attribute of a record that waits: the ids of its request and its response."""
FIELDS = "fields"
"""The attribute of a record with its fields: `logger.info(…, extra={FIELDS: {…}})`."""


class LazyMessage(Struct, frozen=True):
    """A message that is not made before its line is written. It is short, and does not change."""

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of its record."""
        return {}


class LazyRecord(logging.LogRecord):
    """The record of a lazy message, with what all of its logger's records have in common.

    `Logger.log` would take ten times as long to find out who called it.
    """

    msg: LazyMessage

    def __init__(
        self, name: str, level: int, message: LazyMessage, created: float | None = None
    ) -> None:
        self.__dict__.update(_constant_of(name, level))
        created = time.time() if created is None else created
        self.relativeCreated += (created - self.created) * 1000
        self.msg, self.created, self.msecs = message, created, created % 1 * 1000


@lru_cache
def _constant_of(name: str, level: int) -> Mapping[str, Any]:
    return vars(logging.LogRecord(name, level, __file__, 0, "", None, None))


class _WaitingRecord(Struct, frozen=True):
    """A lazy record that waits: a tenth of its bytes, of which there may be hundreds."""

    name: str
    level: int
    message: LazyMessage
    created: float
    ids: tuple[str, str]

    def to_record(self) -> logging.LogRecord:
        record = LazyRecord(self.name, self.level, self.message, self.created)
        setattr(record, IDS, self.ids)
        return record


class LogFormatter(logging.Formatter):
    """Lines for people: every line of a record except the first is indented.

    Its first line ends with the number of the worker that logs, and with the ids of the request
    and of the response that the record is about, unless its message has them.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._worker = worker

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        request_id, response_id = _ids_of(record)
        ids = {"request": request_id, "response": response_id}
        shown = [] if self._worker is None else [f"worker={self._worker}"]
        shown += [f"{name}={value}" for name, value in ids.items() if value and value not in line]
        return f"{line} [{' '.join(shown)}]" if shown else line

    def format(self, record: logging.LogRecord) -> str:
        return escape_record(super().format(record))


class JsonLogFormatter(logging.Formatter):
    """A JSON object a line: `time`, `level`, `logger`, `message`, the `worker`, the ids, the
    record's own fields, and the `exception` with its stack.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        line: dict[str, Any] = {
            "time": f"{_to_second(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if self._worker is not None:
            line["worker"] = self._worker
        request_id, response_id = _ids_of(record)
        if request_id:
            line["request_id"] = request_id
        lazy = record.msg.fields() if isinstance(record.msg, LazyMessage) else {}
        fields = getattr(record, FIELDS, lazy)
        if response_id := response_id or fields.get("response_id") or _response_in(message):
            line["response_id"] = response_id
        line.update(fields)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return _to_json(line)


class BatchHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for mypy
    """Writes the lines of `info` and below together, BATCH_S after the first of them.

    A record that is more than that, or long, is written at once, with all that wait. So is what
    another thread logs, and all that is logged before the event loop runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[logging.LogRecord | _WaitingRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        loop = None if record.levelno > logging.INFO else _running_loop()
        if loop is None:
            self._write_waiting()
            super().emit(record)
            return
        ids = REQUEST_ID.get(), RESPONSE_ID.get()
        is_long = False
        if isinstance(record, LazyRecord):
            waiting = _WaitingRecord(record.name, record.levelno, record.msg, record.created, ids)
            self._waiting.append(waiting)
        else:
            setattr(record, IDS, ids)
            try:  # now: what the message names may change later
                record.msg, record.args = record.getMessage(), None
            except Exception:
                self.handleError(record)
                return
            is_long = len(record.msg) > MAX_CHARS
            self._waiting.append(record)
        if len(self._waiting) >= MAX_WAITING or is_long:
            self._write_waiting()
        elif len(self._waiting) == 1:
            loop.call_later(BATCH_S, self.flush)

    def flush(self) -> None:
        with self.lock or nullcontext():
            self._write_waiting()
            super().flush()

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        lines = []
        for each in waiting:
            record = each.to_record() if isinstance(each, _WaitingRecord) else each
            try:
                lines.append(self.format(record) + self.terminator)
            except Exception:
                self.handleError(record)
        if not lines:
            return
        try:
            self.stream.write("".join(lines))
            self.stream.flush()
        except Exception:
            self.handleError(record)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _ids_of(record: logging.LogRecord) -> tuple[str, str]:
    """Return the ids of the request and of the response that a record is about."""
    ids: tuple[str, str] | None = getattr(record, IDS, None)
    return (REQUEST_ID.get(), RESPONSE_ID.get()) if ids is None else ids


FORMATTERS: Mapping[str, type[LogFormatter | JsonLogFormatter]] = {
    "text": LogFormatter,
    "json": JsonLogFormatter,
}
"""`--log-format` -> its formatter."""


def set_up_logs(level: str, format: str, *, worker: int | None = None) -> None:
    """Let this process log to standard error; `worker` is its number if it is one of several."""
    handler = BatchHandler()
    handler.setFormatter(FORMATTERS[format](worker))
    handler.addFilter(LogLimit(handler))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level == "info":
        for name in LIBRARIES:
            logging.getLogger(name).setLevel(logging.WARNING)


def _response_in(message: str) -> str:
    """Return the response that a message names: vLLM's processes know it as their request."""
    found = _RESPONSE.search(message)
    return found[0] if found else ""


@lru_cache(maxsize=2)
def _to_second(seconds: int) -> str:
    """Return a time in UTC without what is less than a second: many lines share it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _to_json(line: Mapping[str, Any]) -> str:
    """Return a line in ASCII, so that it may have half a character."""
    with suppress(UnicodeEncodeError):
        encoded = msgspec.json.encode(line, enc_hook=repr)  # ten times as fast as `json`
        if encoded.isascii():
            return encoded.decode()
    return json.dumps(line, default=repr)


def escape_record(text: str) -> str:
    r"""Return the text with control characters escaped and all lines but the first indented.

    >>> escape_record("failed: a\r\nINFO all is well\x1b[2K")
    'failed: a\\r\n    INFO all is well\\x1b[2K'
    """
    return _CONTROLS.sub(_escape, text).replace("\n", "\n    ")


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
