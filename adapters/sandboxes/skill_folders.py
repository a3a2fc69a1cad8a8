"""Skills as folders of this machine, which sandboxes see and cannot change.

A sandbox mounts them read-only (bwrap_command.py), so nothing depends on the rights of the files.
Only the user that runs bubblewrap can read them here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from antiphon.adapters.sandboxes.bwrap_command import NOBODY
from antiphon.application.ports import MountedSkill
from antiphon.application.resources.skills.archive import unpack
from antiphon.application.support.tasks import run_or_undo
from antiphon.domain.errors import RequestError, SandboxError


class SkillFolders:
    """The folders of one sandbox: written once, before it starts, and removed with this object."""

    def __init__(self, skills: Sequence[MountedSkill]) -> None:
        self.skills = skills
        self._paths: Mapping[str, str] | None = None
        self._lock = asyncio.Lock()
        self._is_removed = False
        self._remove_root: weakref.finalize[Any, Any] | None = None

    async def write(self) -> Mapping[str, str]:
        """Write the folders, if they are not there, and return them by their paths in the sandbox.

        Raises: SandboxError.
        """
        async with self._lock:
            if self._is_removed:
                raise SandboxError("The container is closed.")
            if not self.skills:
                return {}
            if self._paths is None:
                # Threads cannot be cancelled: they would write into what has been removed.
                writing = self._write()
                self._paths = await run_or_undo(writing, self._undo, fails_with=SandboxError)
                # Nobody reads them again: an archive would be in memory as long as the sandbox.
                self.skills = [replace(skill, read=_read_before) for skill in self.skills]
            return self._paths

    async def remove(self) -> None:
        """Remove the folders. May be repeated."""
        async with self._lock:
            self._is_removed = True
            await self._remove()

    async def _write(self) -> Mapping[str, str]:
        paths: dict[str, str] = {}
        try:
            root = await asyncio.to_thread(_make_root)
            # Also if nobody closes the sandbox, and at the end of the process.
            self._remove_root = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
            for number, skill in enumerate(self.skills):
                folder = root / str(number)
                # One after another: only one archive is in memory at a time.
                await asyncio.to_thread(_write, folder, await skill.read())
                paths[skill.info.path] = str(folder)
        except (OSError, RequestError) as error:
            await self._remove()
            reason = error.strerror if isinstance(error, OSError) else error.message
            raise SandboxError(f"The container cannot have its skills: {reason}.") from None
        except BaseException:
            await self._remove()
            raise
        return paths

    async def _undo(self, _paths: Mapping[str, str]) -> None:
        await self._remove()

    async def _remove(self) -> None:
        if self._remove_root is not None:
            await asyncio.to_thread(self._remove_root)


async def _read_before() -> bytes:
    raise SandboxError("The skills of this container have been read.")


def _make_root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="antiphon-skills-"))
    _give_away(root)
    return root


def _write(folder: Path, archive: bytes) -> None:
    """Write the files of a skill. Raises: OSError, RequestError."""
    _make_folder(folder)
    for name, chunks in unpack(archive, "skills"):
        path = folder / name
        for parent in reversed(path.relative_to(folder).parents[:-1]):
            _make_folder(folder / parent)
        # Uploads of single files have no modes, so every file may be executed.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500), "wb") as file:
            file.writelines(chunks)
        _give_away(path)


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(mode=0o700)
        _give_away(folder)


def _give_away(path: Path) -> None:
    """Let the user that bubblewrap runs as read what root has written."""
    if os.geteuid() == 0:
        os.chown(path, int(NOBODY), int(NOBODY))
