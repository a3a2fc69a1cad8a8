"""The processes of a sandbox, as this machine sees them: who they are, and what they take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

GONE = (FileNotFoundError, ProcessLookupError, ValueError)
MEMORY = ("Pss_Anon:", "Pss_Shmem:")
"""What several processes have together, each has its part of: forks would count many times else."""


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that came of `pid`, also those that have ended and were not waited for.

    In a namespace of processes that is all of them: who loses its parent gets the first one.
    """
    with suppress(*GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*GONE), open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in children.read().split():
                    yield int(child)
                    yield from descendants(int(child))


def total_memory(pid: int) -> int:
    """Return the bytes of memory that a process and all below it have together."""
    return sum(map(_memory_of, {pid, *descendants(pid)}))


def _memory_of(pid: int) -> int:
    """Return the bytes of memory that a process has, files of this machine not counted."""
    with suppress(*GONE), open(f"/proc/{pid}/smaps_rollup") as rollup:
        lines = (line.split() for line in rollup)
        return sum(int(words[1]) * 1024 for words in lines if words and words[0] in MEMORY)
    return 0
