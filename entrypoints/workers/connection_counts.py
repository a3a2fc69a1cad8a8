"""Whose turn it is to accept a connection: that of the workers with the fewest.

Without turns, the worker that wakes up first takes it, and some workers wake up first for hours.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

NONE = 2**31 - 1
"""In place of a number of connections: this worker accepts none."""
BYTES = 4


class ConnectionCounts:
    """The numbers of open connections of all workers, in memory that they share through a file.

    Nothing waits for them: a number that is a moment old costs a connection a moment.
    """

    def __init__(self, folder: Path, *, count: int) -> None:
        size = count * BYTES
        descriptor = os.open(folder / "connections", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            is_new = os.fstat(descriptor).st_size < size
            os.ftruncate(descriptor, size)
            self._numbers = memoryview(mmap.mmap(descriptor, size)).cast("i")
        finally:
            os.close(descriptor)
        if is_new:
            for number in range(1, count + 1):
                self.leave(number)

    def is_least_busy(self, number: int, connections: int) -> bool:
        """Return whether no worker has fewer connections than `number`, which has so many."""
        self._numbers[number - 1] = connections
        return connections <= min(self._numbers)

    def leave(self, number: int) -> None:
        """A worker accepts no more connections."""
        self._numbers[number - 1] = NONE
