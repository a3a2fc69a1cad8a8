"""The folders with the skills of a sandbox: there while it lives, and gone with it."""

from __future__ import annotations

import asyncio
import gc
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.skill_archives import skill

from antiphon.adapters.sandboxes.skill_folders import SkillFolders
from antiphon.application.ports import MountedSkill
from antiphon.domain.errors import SandboxError
from antiphon.domain.requests.skills import SkillInfo

ROOT = "/mnt/skills/csv-tools"


def mounted(read: Callable[[], Awaitable[bytes]]) -> MountedSkill:
    info = SkillInfo(name="csv-tools", description="Reads CSV.", path=ROOT)
    return MountedSkill(info=info, version="1", unpacked_bytes=10, read=read)


async def archive() -> bytes:
    return skill(**{"a/b/c.sh": "echo"})


async def damaged() -> bytes:
    return skill()[:-30]


async def gone() -> bytes:
    raise SandboxError("The skill 'csv-tools' can no longer be read.")


def below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def test_they_are_written_once_and_removed_at_the_end(folder: Path) -> None:
    folders = SkillFolders([mounted(archive)])
    [(inside, outside)] = (await folders.write()).items()
    assert inside == ROOT
    names = {path.relative_to(outside).as_posix() for path in below(Path(outside))}
    assert names == {"SKILL.md", "a", "a/b", "a/b/c.sh"}
    assert await folders.write() == {inside: outside}
    await folders.remove()
    await folders.remove()
    assert below(folder) == []
    with pytest.raises(SandboxError, match="closed"):
        await folders.write()


async def test_only_their_owner_can_read_them(folder: Path) -> None:
    folders = SkillFolders([mounted(archive)])
    await folders.write()
    for path in below(folder):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    await folders.remove()


async def test_a_sandbox_without_skills_has_no_folder(folder: Path) -> None:
    assert await SkillFolders([]).write() == {}
    assert below(folder) == []


@pytest.mark.parametrize("read", [damaged, gone])
async def test_what_cannot_be_read_leaves_nothing(
    folder: Path, read: Callable[[], Awaitable[bytes]]
) -> None:
    folders = SkillFolders([mounted(archive), mounted(read)])
    with pytest.raises(SandboxError, match="skill"):
        await folders.write()
    assert below(folder) == []


async def test_a_cancelled_start_leaves_nothing(folder: Path) -> None:
    reading = asyncio.Event()

    async def slow() -> bytes:
        reading.set()
        return await archive()

    folders = SkillFolders([mounted(slow)])
    writing = asyncio.ensure_future(folders.write())
    await reading.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert below(folder) == []


async def test_those_of_a_forgotten_sandbox_go_too(folder: Path) -> None:
    folders = SkillFolders([mounted(archive)])
    await folders.write()
    del folders
    gc.collect()
    assert below(folder) == []
