"""Whether this server is alone on its store: only then is what looks unfinished really so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks; there, nobody looks
    fcntl = None  # type: ignore[assignment]


@contextmanager
def sole_use(file: Path) -> Iterator[bool]:
    """Hold a lock beside the store's file; yields False if another server holds it.

    The system lets go of it when the process ends, however it ends.
    """
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        yield _taken(lock.fileno())


def _taken(descriptor: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
