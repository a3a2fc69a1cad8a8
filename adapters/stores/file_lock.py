"""A lock file that tells a process whether it is the only one that uses a file.

The operating system releases the lock however a process ends. So the next process that gets an
exclusive lock knows that all earlier ones are gone.
"""

from __future__ import annotations

import errno
import os
import random
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock: there, no process counts as the only one
    fcntl = None  # type: ignore[assignment]


class FileLock:
    """Call `acquire` before work for one process alone, then `acquire_shared`, then `release`."""

    works = fcntl is not None

    def __init__(self, file: Path) -> None:
        self._file = file.with_name(f"{file.name}.lock")
        self._descriptor: int | None = None

    def acquire(self, timeout_s: float) -> bool:
        """Return whether no other process uses the file. If so, none can until `acquire_shared`.

        Raises: BlockingIOError if another process has the exclusive lock for all of `timeout_s`.
        """
        if fcntl is None:
            return False
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        if _try_lock(self._descriptor, fcntl.LOCK_EX):
            return True
        self.acquire_shared(timeout_s)
        return False

    def acquire_shared(self, timeout_s: float) -> None:
        """Share the lock with other processes. Raises: BlockingIOError, as `acquire` does."""
        if self._descriptor is None:
            return
        # While this lock is converted, another process may briefly get the exclusive lock.
        deadline = time.monotonic() + timeout_s
        while not _try_lock(self._descriptor, fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process has it locked")
            time.sleep(random.uniform(0.001, 0.02))

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
