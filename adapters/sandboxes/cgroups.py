"""Groups of processes with limits of the kernel's (cgroup v2), where this server may make them.

A group holds what limits of single processes cannot: the memory of all processes of a sandbox, its
files in memory included, and their number. The server may make groups below its own one if nothing
else is in there, or beside it, where whoever started it says so (systemd: `Delegate=memory pids`
with `DelegateSubgroup=server`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger("antiphon.sandboxes")

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
CONTROLLERS = ("memory", "pids")
PREFIX = "antiphon-"
REMOVE_S = 1.0

_ENTER = 'echo $$ > "$0" && exec "$@"'
"""A process enters its group before it is anything else: none of its children is outside."""


class NoCgroup(Exception):
    """No group can be made; the message says why."""


class Group:
    """One group; `folder` is it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wrap_command(self, command: Sequence[str]) -> list[str]:
        """Return the command, run in this group."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder / "cgroup.procs"), *command]

    def has(self, pid: int) -> bool:
        return str(pid) in (self.folder / "cgroup.procs").read_text().split()

    async def remove(self) -> None:
        """Remove it, now that its processes are gone."""
        for _ in range(int(REMOVE_S / 0.01)):
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # the last of them is not quite gone
                await asyncio.sleep(0.01)
            else:
                return
        logger.warning("the cgroup %s of a container cannot be removed", self.folder)


class Cgroups:
    """Groups below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        for left in folder.glob(f"{PREFIX}*"):
            with suppress(OSError):  # another server's
                left.rmdir()

    def make(self, *, memory_bytes: int, processes: int) -> Group:
        """Raises: OSError."""
        self._made += 1
        folder = self._folder / f"{PREFIX}{os.getpid()}-{self._made}"
        folder.mkdir()
        limits: Mapping[str, int] = {
            "memory.max": memory_bytes,
            "memory.swap.max": 0,
            "pids.max": processes,
        }
        for name, most in limits.items():
            # A kernel without swap has no limit of it.
            if name != "memory.swap.max" or (folder / name).exists():
                (folder / name).write_text(str(most))
        return Group(folder)


def find(
    root: Path = ROOT, own: Path = OWN, is_delegated: Callable[[Path], bool] | None = None
) -> Cgroups:
    """Return the groups that this server may make. Raises: NoCgroup."""
    if not (root / "cgroup.controllers").exists():
        raise NoCgroup(f"there is no cgroup v2 at {root}")
    lines = own.read_text().splitlines()
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        raise NoCgroup("this process is in no cgroup of version 2")
    folder = root / path
    candidates = [folder]
    if folder != root and (is_delegated or _is_delegated)(folder.parent):
        candidates.append(folder.parent)
    why = ""
    for each in candidates:
        try:
            _enable(each)
        except OSError as error:
            why = why or f"{error.strerror}: {error.filename}"
        else:
            return Cgroups(each)
    raise NoCgroup(why)


def _enable(folder: Path) -> None:
    """Let groups below have limits. Raises: OSError, also where processes are in the way."""
    control = folder / "cgroup.subtree_control"
    if not set(CONTROLLERS) <= set(control.read_text().split()):
        control.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    proof = folder / f"{PREFIX}proof-{os.getpid()}"
    proof.mkdir()
    proof.rmdir()


def _is_delegated(folder: Path) -> bool:
    """Whether systemd has given this group, and all below, to the server."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False
