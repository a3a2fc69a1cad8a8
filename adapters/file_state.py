"""Notice that a file has changed."""

from __future__ import annotations

from pathlib import Path


def state_of(path: Path) -> tuple[int, ...]:
    """Return the file's modification time, size and inode, or () if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
