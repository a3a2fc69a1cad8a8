"""What tests ask of processes that are not theirs."""

from __future__ import annotations

import re
from pathlib import Path


def is_process_alive(process: int) -> bool:
    """Say whether a process lives; one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children_of(process: int) -> list[int]:
    """Return the living processes that a process has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        state, parent = re.split(r"\s+", stat.rpartition(")")[2].strip())[:2]
        if int(parent) == process and state != "Z":
            found.append(int(entry.name))
    return found


def descendants_of(process: int) -> list[int]:
    """Return the living processes that a process and those have started."""
    children = children_of(process)
    return children + [each for child in children for each in descendants_of(child)]
