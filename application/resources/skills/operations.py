"""Skills and their versions: create, list, get, update, delete, and read the archive."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import Clock, NewId, StoredFile
from antiphon.application.resources.skills.archive import (
    check_path,
    is_ignored,
    pack,
    read_facts,
    skill_paths,
)
from antiphon.application.resources.skills.contents import SkillContents
from antiphon.application.resources.skills.index import (
    SkillIndex,
    Skills,
    StoredSkill,
    StoredVersion,
    check_room,
    find_skill,
    parse_version,
    replaced,
    with_version,
    without_version,
)
from antiphon.application.support.paging import HasId, Order, Page
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.requests.skills import Skill, SkillVersion, invalid_skill

T = TypeVar("T", bound=HasId)

FILES = "files"
"""The field of the form with the files of a skill."""


class SkillUpload(Struct, frozen=True, kw_only=True):
    """The files of a new version, by the paths that the client gives them.

    If `is_archive`, there is one: a zip archive.
    """

    files: Sequence[tuple[str, bytes]]
    is_archive: bool


class AddVersion:
    """Checks an upload, keeps its archive, and adds it to the index."""

    def __init__(
        self, index: SkillIndex, contents: SkillContents, *, new_id: NewId, now: Clock
    ) -> None:
        self._index = index
        self._contents = contents
        self._new_id = new_id
        self._now = now

    async def __call__(
        self, tenant: str, upload: SkillUpload, *, skill_id: str | None, is_default: bool
    ) -> tuple[StoredSkill, StoredVersion]:
        """Add a version to the skill or, without `skill_id`, to a new one.

        Raises: RequestError, StoreError.
        """
        archive, version = await compute_in_thread(self._read, upload)
        skills = await self._index.load(tenant)
        check_room(skills)
        if skill_id is not None:
            find_skill(skills, skill_id, "skill_id")
        known_ids = {each.id for skill in skills for each in skill.versions}
        await self._contents.sweep(tenant, known_ids)
        new_skill_id = skill_id or self._new_id("skill")

        def edit(skills: Skills) -> Skills:
            check_room(skills)
            if skill_id is not None:
                skill = find_skill(skills, skill_id, "skill_id")
                return replaced(skills, with_version(skill, version, is_default=is_default))
            skill = StoredSkill(
                id=new_skill_id,
                created_at=version.created_at,
                default=0,
                last_number=0,
                versions=(),
            )
            return (*skills, with_version(skill, version, is_default=True))

        await self._contents.add(tenant, version.id, f"{version.name}.zip", archive)
        try:
            await self._index.change(tenant, edit)
        except BaseException:
            await self._contents.remove(tenant, [version.id])
            raise
        skill = await self._index.get(tenant, new_skill_id)
        for each in skill.versions:
            if each.id == version.id:
                return skill, each
        raise NotFound(f"Skill with id {new_skill_id!r} not found.")  # deleted meanwhile

    def _read(self, upload: SkillUpload) -> tuple[bytes, StoredVersion]:
        """Return the archive and the version that it is, still without a number."""
        archive = upload.files[0][1] if upload.is_archive else _pack_folder(upload.files)
        facts = read_facts(archive, FILES)
        version = StoredVersion(
            id=self._new_id("skillver"),
            number=0,
            created_at=int(self._now()),
            name=facts.name,
            description=facts.description,
            unpacked_bytes=facts.unpacked_bytes,
        )
        return archive, version


def _pack_folder(files: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the archive of these files. Raises: RequestError."""
    contents: dict[str, bytes] = {}
    for name, content in files:
        if is_ignored(name):
            continue
        check_path(name, FILES)
        if name in contents:
            raise invalid_skill(f"The skill has two files {name[:100]!r}.", FILES)
        contents[name] = content
    paths: Mapping[str, str] = skill_paths(list(contents), FILES)
    return pack({paths[name]: content for name, content in contents.items()})


class CreateSkill:
    def __init__(self, add: AddVersion) -> None:
        self._add = add

    async def __call__(self, tenant: str, upload: SkillUpload) -> Skill:
        """Raises: RequestError, StoreError."""
        skill, _ = await self._add(tenant, upload, skill_id=None, is_default=True)
        return skill.show()


class CreateSkillVersion:
    def __init__(self, add: AddVersion) -> None:
        self._add = add

    async def __call__(
        self, tenant: str, skill_id: str, upload: SkillUpload, *, is_default: bool
    ) -> SkillVersion:
        """Raises: RequestError, StoreError."""
        _, version = await self._add(tenant, upload, skill_id=skill_id, is_default=is_default)
        return version.show(skill_id)


class ListSkills:
    def __init__(self, index: SkillIndex) -> None:
        self._index = index

    async def __call__(
        self, tenant: str, *, after: str | None, limit: int, order: Order
    ) -> Page[Skill]:
        """Return a page, by age. Raises: RequestError, StoreError."""
        skills = [skill.show() for skill in await self._index.load(tenant)]
        return _to_page(skills, after=after, limit=limit, order=order)


class ListSkillVersions:
    def __init__(self, index: SkillIndex) -> None:
        self._index = index

    async def __call__(
        self, tenant: str, skill_id: str, *, after: str | None, limit: int, order: Order
    ) -> Page[SkillVersion]:
        """Return a page, by number. Raises: RequestError, StoreError."""
        skill = await self._index.get(tenant, skill_id)
        versions = [each.show(skill_id) for each in skill.versions]
        return _to_page(versions, after=after, limit=limit, order=order)


class GetSkill:
    def __init__(self, index: SkillIndex) -> None:
        self._index = index

    async def __call__(self, tenant: str, skill_id: str) -> Skill:
        """Raises: NotFound, StoreError."""
        return (await self._index.get(tenant, skill_id)).show()


class GetSkillVersion:
    def __init__(self, index: SkillIndex) -> None:
        self._index = index

    async def __call__(self, tenant: str, skill_id: str, version: str) -> SkillVersion:
        """Raises: RequestError, StoreError."""
        skill = await self._index.get(tenant, skill_id)
        return skill.find(version, "version").show(skill_id)


class GetSkillContent:
    def __init__(self, index: SkillIndex, contents: SkillContents) -> None:
        self._index = index
        self._contents = contents

    async def __call__(
        self, tenant: str, skill_id: str, version: str | None = None
    ) -> tuple[StoredFile, AsyncGenerator[bytes]]:
        """Return the archive of a version, or of the default one, and its content in pieces.

        Raises: RequestError, StoreError.
        """
        found = (await self._index.get(tenant, skill_id)).find(version, "version")
        try:
            return await self._contents.open(tenant, found.id)
        except NotFound:
            raise NotFound(
                f"The archive of the skill {skill_id!r} is not at this server.", param="skill_id"
            ) from None


class UpdateSkill:
    def __init__(self, index: SkillIndex) -> None:
        self._index = index

    async def __call__(self, tenant: str, skill_id: str, default_version: str) -> Skill:
        """Make another version the default one. Raises: RequestError, StoreError."""

        def edit(skills: Skills) -> Skills:
            skill = find_skill(skills, skill_id, "skill_id")
            number = skill.find(default_version, "default_version").number
            return replaced(skills, replace(skill, default=number))

        await self._index.change(tenant, edit)
        return (await self._index.get(tenant, skill_id)).show()


class DeleteSkill:
    def __init__(self, index: SkillIndex, contents: SkillContents) -> None:
        self._index = index
        self._contents = contents

    async def __call__(self, tenant: str, skill_id: str) -> None:
        """Delete a skill with all of its versions. Raises: NotFound, StoreError."""
        removed_ids: list[str] = []

        def edit(skills: Skills) -> Skills:
            skill = find_skill(skills, skill_id, "skill_id")
            removed_ids[:] = [each.id for each in skill.versions]
            return tuple(each for each in skills if each.id != skill_id)

        await self._index.change(tenant, edit)
        await self._contents.remove(tenant, removed_ids)


class DeleteSkillVersion:
    def __init__(self, index: SkillIndex, contents: SkillContents) -> None:
        self._index = index
        self._contents = contents

    async def __call__(self, tenant: str, skill_id: str, version: str) -> StoredVersion:
        """Delete a version, and the skill with its only one; return what was deleted.

        Raises: RequestError, StoreError.
        """
        number = parse_version(version, "version")
        removed: list[StoredVersion] = []

        def edit(skills: Skills) -> Skills:
            skill = find_skill(skills, skill_id, "skill_id")
            removed[:] = [skill.find(version, "version")]
            changed = without_version(skill, number, "version")
            if changed is None:
                return tuple(each for each in skills if each.id != skill_id)
            return replaced(skills, changed)

        await self._index.change(tenant, edit)
        await self._contents.remove(tenant, [each.id for each in removed])
        return removed[0]


def _to_page(entries: Sequence[T], *, after: str | None, limit: int, order: Order) -> Page[T]:
    """Raises: RequestError if `after` is not in the list."""
    if order == "desc":
        entries = entries[::-1]
    ids = [each.id for each in entries]
    if after is not None and after not in ids:
        raise RequestError(
            f"This list has no {after[:100]!r}.", param="after", code="invalid_value"
        )
    start = 0 if after is None else ids.index(after) + 1
    return Page(items=entries[start : start + limit], has_more=start + limit < len(entries))
