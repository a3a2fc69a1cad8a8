"""The processes of a sandbox as this machine sees them: their ids and their memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

GONE = (FileNotFoundError, ProcessLookupError, ValueError)
MEMORY = ("Pss_Anon:", "Pss_Shmem:")
"""Proportional sizes: a page that several processes share counts once, not once for each fork."""


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of all descendants of `pid`, including zombies.

    For the first process of a PID namespace these are all others: it adopts every orphan.
    """
    with suppress(*GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*GONE), open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in children.read().split():
                    yield int(child)
                    yield from descendants(int(child))


def total_memory(pid: int) -> int:
    """Return the bytes of memory that a process and its descendants use together."""
    return sum(map(_memory_of, {pid, *descendants(pid)}))


def _memory_of(pid: int) -> int:
    """Return the bytes of memory that a process uses, without mapped files of this machine."""
    with suppress(*GONE), open(f"/proc/{pid}/smaps_rollup") as rollup:
        lines = (line.split() for line in rollup)
        return sum(int(words[1]) * 1024 for words in lines if words and words[0] in MEMORY)
    return 0
