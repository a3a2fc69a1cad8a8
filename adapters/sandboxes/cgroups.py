"""Control groups (cgroup v2) around sandboxes, where this server is allowed to make them.

A cgroup limits what limits of single processes cannot: the number of a sandbox's processes and
their memory together, including the files that they hold in memory. The server can make groups
below its own group if that contains no processes, or beside it if systemd delegated the parent to
it (`Delegate=memory pids` with `DelegateSubgroup=server`).
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
OWN_GROUP_FILE = Path("/proc/self/cgroup")
CONTROLLERS = ("memory", "pids")
PREFIX = "antiphon-"
REMOVE_S = 1.0

WITHOUT_CGROUP = (
    "Without a cgroup, the processes of a container may together use two or three times "
    "--code-memory-mb until the server ends them."
)

_ENTER = 'echo $$ > "$0" && exec "$@"'
"""Enters the group before it runs the command, so that every child process is inside it."""


class CgroupUnavailable(Exception):
    """The server cannot make cgroups; the message says why."""


class Group:
    """A cgroup, by its folder in the cgroup file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wrap_command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs `command` in this group."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder / "cgroup.procs"), *command]

    def has(self, pid: int) -> bool:
        return str(pid) in (self.folder / "cgroup.procs").read_text().split()

    async def remove(self) -> None:
        """Remove the group after its processes have ended."""
        for _ in range(int(REMOVE_S / 0.01)):
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # the kernel has not yet removed the last process
                await asyncio.sleep(0.01)
            else:
                return
        logger.warning("the cgroup %s of a container cannot be removed", self.folder)


class Cgroups:
    """The groups below `folder`. Removes the empty ones that an earlier server left behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        for leftover in folder.glob(f"{PREFIX}*"):
            with suppress(OSError):  # another server is using it
                leftover.rmdir()

    def make(self, *, memory_bytes: int, processes: int) -> Group:
        """Make a group with these limits. Raises: OSError."""
        self._count += 1
        folder = self._folder / f"{PREFIX}{os.getpid()}-{self._count}"
        folder.mkdir()
        limits: Mapping[str, int] = {
            "memory.max": memory_bytes,
            "memory.swap.max": 0,
            "pids.max": processes,
        }
        for name, limit in limits.items():
            # A kernel without swap has no such file.
            if name != "memory.swap.max" or (folder / name).exists():
                (folder / name).write_text(str(limit))
        return Group(folder)


def find(
    root: Path = ROOT,
    own_group_file: Path = OWN_GROUP_FILE,
    is_delegated: Callable[[Path], bool] | None = None,
) -> Cgroups:
    """Return the folder in which this server can make groups. Raises: CgroupUnavailable."""
    if not (root / "cgroup.controllers").exists():
        raise CgroupUnavailable(f"there is no cgroup v2 at {root}")
    lines = own_group_file.read_text().splitlines()
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        raise CgroupUnavailable("this process is in no cgroup of version 2")
    folder = root / path
    candidates = [folder]
    if folder != root and (is_delegated or _is_delegated)(folder.parent):
        candidates.append(folder.parent)
    reason = ""
    for candidate in candidates:
        try:
            _enable_controllers(candidate)
        except OSError as error:
            reason = reason or f"{error.strerror}: {error.filename}"
        else:
            return Cgroups(candidate)
    raise CgroupUnavailable(reason)


def _enable_controllers(folder: Path) -> None:
    """Allow limits on the groups below `folder`.

    Raises: OSError if that is not permitted, or if processes are in the group itself.
    """
    control = folder / "cgroup.subtree_control"
    if not set(CONTROLLERS) <= set(control.read_text().split()):
        control.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    trial = folder / f"{PREFIX}proof-{os.getpid()}"
    trial.mkdir()
    trial.rmdir()


def _is_delegated(folder: Path) -> bool:
    """Whether systemd has delegated this group, and those below it, to the server."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False
