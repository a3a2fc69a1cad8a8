"""Which processes use a file: each holds a lock beside it, of which the system lets go at its end.

However a process ends: so the first that comes afterwards knows that all before it are gone.
"""

from __future__ import annotations

import errno
import os
import random
import time
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, nobody is known to be alone
    fcntl = None  # type: ignore[assignment]


class FileLock:
    """`acquire` for what only one process may do, then `acquire_shared`; at the end `release`."""

    def __init__(self, file: Path) -> None:
        self._file = file.with_name(f"{file.name}.lock")
        self._descriptor: int | None = None

    def acquire(self, timeout_s: float) -> bool:
        """Return whether no other process uses the file: then none can come until `acquire_shared`.

        Raises: BlockingIOError when another process keeps it to itself for so long.
        """
        if fcntl is None:
            return False
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o600)
        if _taken(self._descriptor, fcntl.LOCK_EX):
            return True
        self.acquire_shared(timeout_s)
        return False

    def acquire_shared(self, timeout_s: float) -> None:
        """Be one of several. Raises: BlockingIOError, as above."""
        if self._descriptor is None:
            return
        # Another may come while one lock is turned into the other: for a moment it is alone, too.
        deadline = time.monotonic() + timeout_s
        while not _taken(self._descriptor, fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process keeps it to itself")
            time.sleep(random.uniform(0.001, 0.02))

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _taken(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
