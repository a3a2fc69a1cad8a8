"""The memory of a sandbox's processes, as this machine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from antiphon.adapters.processes import GONE, descendants

PROPORTIONAL = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
"""Proportional sizes: a page that several processes share counts once, not once for each fork."""

RESIDENT = ("RssAnon:", "RssShmem:", "VmSwap:")
"""Sizes that the kernel keeps anyway: cheap, but a shared page counts once for each process."""


def total_memory(pid: int, enough_bytes: int) -> int:
    """Return the bytes of memory that a process and its descendants use together.

    Up to `enough_bytes` the number may be too high; above, it is exact. Mapped files of this
    machine do not count.
    """
    pids = {pid, *descendants(pid)}
    resident_bytes = sum(_sum_of(f"/proc/{each}/status", RESIDENT) for each in pids)
    if resident_bytes <= enough_bytes:
        return resident_bytes
    return sum(_sum_of(f"/proc/{each}/smaps_rollup", PROPORTIONAL) for each in pids)


def _sum_of(path: str, names: Sequence[str]) -> int:
    """Return the sum in bytes of some lines of a process's file, whose sizes are in kB."""
    with suppress(*GONE), open(path) as file:
        lines = (line.split() for line in file)
        return sum(int(words[1]) * 1024 for words in lines if words and words[0] in names)
    return 0
