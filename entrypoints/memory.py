"""How the C library keeps memory that was freed: little of it, in few places."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

OPTIONS = ((M_ARENA_MAX, 2), (M_MMAP_THRESHOLD, 128 * 1024), (M_TRIM_THRESHOLD, 1024 * 1024))
"""Arenas for all threads, and sizes in bytes. A block of at least M_MMAP_THRESHOLD goes back to the
kernel as soon as it is freed. By default both sizes grow with the largest block that was ever
freed, up to 32 MB, and each thread gets an arena of its own: a few long bodies then leave tens of
megabytes that are free, but in pieces, and stay with this process."""


def keep_little_free_memory() -> None:
    """Tell glibc; other C libraries have no such options. Call this before threads start."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            for option, value in OPTIONS:
                libc.mallopt(option, value)
