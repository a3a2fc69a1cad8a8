"""The audit log as a file of JSON lines, written by a thread of its own.

A record is handed over at once, so that a slow disk stops no response. While the file cannot be
written, records wait in memory, up to a limit; the errors are logged, and the server goes on. The
file may be moved away at any time: the next line goes to a new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from antiphon.application.ports import AuditLog, GuardRecord, ToolCallRecord
from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.audit")

MAX_WAITING_BYTES = 16 * 1024 * 1024
RETRY_S = 1.0
LOG_INTERVAL_RETRIES = 60
CLOSE_S = 5.0
"""The seconds that closing waits for a disk that does not answer."""


class AuditFile(AuditLog):
    """The audit log in `path`, readable by this server's user only."""

    def __init__(self, path: Path, *, now: Callable[[], float]) -> None:
        self._path = path
        self._now = now
        self._descriptor = -1
        self._waiting = bytearray()
        self._lost = 0
        self._failures = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._open)
        except OSError as error:
            raise SettingsError(
                f"The audit log {str(self._path)!r} cannot be written: {error.strerror}."
            ) from None
        self._thread = threading.Thread(target=self._write_all, name="audit-log", daemon=True)
        self._thread.start()

    def record(self, call: ToolCallRecord) -> None:
        self._add(call)

    def record_guard(self, guard: GuardRecord) -> None:
        self._add(guard)

    def _add(self, record: ToolCallRecord | GuardRecord) -> None:
        time = datetime.fromtimestamp(self._now(), UTC).isoformat(timespec="milliseconds")
        line = msgspec.json.encode({"time": time, **msgspec.to_builtins(record)}) + b"\n"
        with self._changed:
            if len(self._waiting) + len(line) > MAX_WAITING_BYTES:
                self._lost += 1
                return
            self._waiting += line
            self._changed.notify()

    async def aclose(self) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, CLOSE_S)
        if self._thread.is_alive():
            logger.error("the audit log %s does not take its last records", self._path)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)

    def _write_all(self) -> None:
        """Write what waits, until the log is closed and nothing waits any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                content = bytes(self._waiting)
                lost, self._lost = self._lost, 0
            if lost:
                logger.error("%d records of the audit log were lost: too many waited", lost)
            if not content:
                break
            written = self._write(content)
            with self._changed:
                del self._waiting[:written]
                if written < len(content):
                    if self._is_closing:
                        lines = self._waiting.count(b"\n")
                        logger.error("%d records of the audit log were lost at the end", lines)
                        break
                    self._changed.wait_for(lambda: self._is_closing, RETRY_S)
        with suppress(OSError):
            os.fsync(self._descriptor)
        os.close(self._descriptor)

    def _write(self, content: bytes) -> int:
        """Return how many bytes were written."""
        try:
            self._reopen_if_moved()
            written = os.write(self._descriptor, content)
        except OSError as error:
            if self._failures % LOG_INTERVAL_RETRIES == 0:
                logger.error(  # noqa: TRY400 - the reason says it all
                    "the audit log %s cannot be written: %s; its records wait",
                    self._path,
                    error.strerror,
                )
            self._failures += 1
            return 0
        self._failures = 0
        return written

    def _reopen_if_moved(self) -> None:
        current = os.fstat(self._descriptor)
        with suppress(FileNotFoundError):
            found = os.stat(self._path)
            if (found.st_dev, found.st_ino) == (current.st_dev, current.st_ino):
                return
        previous = self._descriptor
        self._open()
        os.close(previous)
