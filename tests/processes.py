"""What tests ask of processes that are not theirs."""

from __future__ import annotations

from pathlib import Path


def is_process_alive(process: int) -> bool:
    """Say whether a process lives; one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
