"""How the C library keeps memory that was freed: little of it, in few places."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

OPTIONS = ((M_ARENA_MAX, 2), (M_MMAP_THRESHOLD, 128 * 1024), (M_TRIM_THRESHOLD, 1024 * 1024))
"""Arenas for all threads, and sizes in bytes. A block of at least M_MMAP_THRESHOLD goes back to the
kernel as soon as it is freed. By default both sizes grow with the largest block that was ever
freed, up to 32 MB, and each thread gets an arena of its own: a few long bodies then leave tens of
megabytes that are free, but in pieces, and stay with this process."""

LOOK_EVERY_S = 1.0
GROWTH_BYTES = 8 * 1024 * 1024
"""More resident memory since the last trim: then the next one comes at once."""

TRIM_EVERY_S = 5.0
"""Without such growth: memory may be freed long after it was taken. A trim that finds nothing takes
0.3 ms of a thread; one that gives back 90 MB in 1,600 pieces takes 6 ms."""

MAX_SHARE = 0.01
"""Of the time, for all trims: what allocates meanwhile waits."""

STATM = Path("/proc/self/statm")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def keep_little_free_memory() -> None:
    """Tell glibc; other C libraries have no such options. Call this before threads start."""
    if (libc := _glibc()) is not None:
        for option, value in OPTIONS:
            libc.mallopt(option, value)


@contextmanager
def trimming_memory(look_every_s: float = LOOK_EVERY_S) -> Iterator[None]:
    """Give memory that was freed in the middle of the heap back to the kernel, from a thread.

    glibc itself only gives back what is free at the end of the heap, so a small object that lives
    on behind long prompts keeps all of their memory. Does nothing without glibc.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    stopping = threading.Event()
    args = (stopping, libc.malloc_trim, look_every_s)
    thread = threading.Thread(target=_trim_until, args=args, name="memory trimmer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _trim_until(
    stopping: threading.Event, trim: Callable[[int], object], look_every_s: float
) -> None:
    resident, may_trim_at, next_at = _resident_bytes(), 0.0, 0.0
    while not stopping.wait(look_every_s):
        now = time.monotonic()
        has_grown = _resident_bytes() > resident + GROWTH_BYTES
        if now < (may_trim_at if has_grown else next_at):
            continue
        trim(0)
        resident, ended_at = _resident_bytes(), time.monotonic()
        may_trim_at = ended_at + (ended_at - now) / MAX_SHARE
        next_at = max(may_trim_at, ended_at + TRIM_EVERY_S)


def _resident_bytes() -> int:
    return int(STATM.read_bytes().split()[1]) * PAGE_BYTES


def _glibc() -> ctypes.CDLL | None:
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            if libc.mallopt and libc.malloc_trim:
                return libc
    return None
