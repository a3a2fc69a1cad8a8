"""The operator's skills: a folder with a subfolder for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from antiphon.application.resources.skills.archive import (
    MAX_FILES,
    MAX_UNPACKED_BYTES,
    check_path,
    is_ignored,
    pack,
    read_facts,
    skill_paths,
)
from antiphon.application.resources.skills.mount import OperatorSkill
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.requests.skills import MAX_SKILLS, invalid_skill


def read_skills(folder: Path) -> Mapping[str, OperatorSkill]:
    """Return the skills by their names. They are read once, at the start. Raises: SettingsError."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise SettingsError(f"The folder of skills {str(folder)!r} does not exist.")
    subfolders = sorted(each for each in folder.iterdir() if each.is_dir())
    if len(subfolders) > MAX_SKILLS:
        raise SettingsError(f"The folder {str(folder)!r} has more than {MAX_SKILLS} skills.")
    skills: dict[str, OperatorSkill] = {}
    for subfolder in subfolders:
        if subfolder.name.startswith("."):
            continue
        skill = _read_skill(subfolder)
        name = skill.facts.name
        if name in skills:
            raise SettingsError(f"Two skills in {str(folder)!r} have the name {name!r}.")
        skills[name] = skill
    return skills


def _read_skill(folder: Path) -> OperatorSkill:
    """Raises: SettingsError."""
    try:
        archive = pack(_read_files(folder))
        return OperatorSkill(facts=read_facts(archive, "skill"), archive=archive)
    except OSError as error:
        reason = (error.strerror or str(error)).rstrip(".")
    except RequestError as error:
        reason = error.message.rstrip(".")
    raise SettingsError(f"The skill {str(folder)!r} cannot be used: {reason}.")


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a skill by their paths in it. Raises: OSError, RequestError."""
    names = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or is_ignored(name):
            continue
        if path.is_symlink() or not path.is_file():
            raise invalid_skill(f"{name[:100]!r} is a link or a device.", "skill")
        check_path(name, "skill")
        names.append(name)
        if len(names) > MAX_FILES:
            break
    paths = skill_paths(names, "skill")
    if sum((folder / name).stat().st_size for name in names) > MAX_UNPACKED_BYTES:
        raise invalid_skill(f"It has more than {MAX_UNPACKED_BYTES} bytes.", "skill")
    return {inner: (folder / name).read_bytes() for name, inner in paths.items()}
