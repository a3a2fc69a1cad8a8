"""Room that is kept on a disk for deleting.

To delete, SQLite must write first, so on a full disk nobody could make room.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw

from antiphon.domain.errors import StoreError

RESERVE_BYTES = 8 * 1024 * 1024
"""Twice what a WAL holds before it is written back, for which the file itself must grow."""

LOW_BYTES = 16 * RESERVE_BYTES
"""The reserve is taken when less is free: until then, its space is everybody's."""

ROOM_BYTES = 1024 * 1024
"""With less, responses fail, though a small write may still find a place."""


def free_bytes(folder: Path) -> int:
    """Return what this process may still write. Raises: OSError."""
    return shutil.disk_usage(folder).free


def check_room(db: apsw.Connection) -> None:
    """Raises: StoreError if neither the disk nor the file itself has room for another response."""
    unused_bytes = db.pragma("freelist_count") * db.pragma("page_size")
    if free_bytes(Path(db.filename).parent) + unused_bytes < ROOM_BYTES:
        raise StoreError(
            f"The store {db.filename!r} has no room for more: the disk is full.",
            reason="the disk is full",
        )


class DiskReserve:
    """A file of `RESERVE_BYTES` in the folder of a store, which all stores there share.

    `free` returns the free bytes of a folder's disk.
    """

    def __init__(self, folder: Path, *, free: Callable[[Path], int] = free_bytes) -> None:
        self._folder = folder
        self._file = folder / "antiphon.reserve"
        self._free = free

    def keep(self) -> None:
        """Take the space if little is left. Without enough for it, there is no reserve."""
        with suppress(OSError):
            if self._file.exists() or self._free(self._folder) >= LOW_BYTES:
                return
            try:
                _allocate(self._file, RESERVE_BYTES)
            except FileExistsError:  # another process was faster
                return
            except OSError:
                self._file.unlink(missing_ok=True)

    def release(self) -> bool:
        """Give the space back. Return whether there was any."""
        try:
            self._file.unlink()
        except OSError:
            return False
        return True


def _allocate(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.write(descriptor, bytes(size))
    finally:
        os.close(descriptor)
