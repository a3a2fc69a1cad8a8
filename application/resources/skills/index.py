"""The skills of each tenant, with their versions: one value that all servers of a store share.

It is changed by compare-and-set, so each change is of the whole or not at all. Archives are not in
it: they are files in a space of the tenant's that `/v1/files` does not show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import SharedValues
from antiphon.domain.errors import NotFound, RequestError, StoreError
from antiphon.domain.requests.skills import Skill, SkillVersion

MAX_VERSIONS = 500
"""Of a tenant, those of all skills together: the value then has some 700 KB, and 3 MB at most."""

MAX_ATTEMPTS = 20
LATEST = "latest"


class StoredVersion(Struct, frozen=True, kw_only=True):
    """`id` is also that of the file with the archive."""

    id: str
    number: int
    created_at: int
    name: str
    description: str
    unpacked_bytes: int

    def show(self, skill_id: str) -> SkillVersion:
        return SkillVersion(
            id=self.id,
            skill_id=skill_id,
            created_at=self.created_at,
            name=self.name,
            description=self.description,
            version=str(self.number),
        )


class StoredSkill(Struct, frozen=True, kw_only=True):
    """A skill with its versions, the oldest first: at least one. A number is never given twice."""

    id: str
    created_at: int
    default: int
    last_number: int
    versions: tuple[StoredVersion, ...]

    @property
    def latest(self) -> StoredVersion:
        return self.versions[-1]

    def show(self) -> Skill:
        default = self.find(None, "")
        return Skill(
            id=self.id,
            created_at=self.created_at,
            name=default.name,
            description=default.description,
            default_version=str(self.default),
            latest_version=str(self.latest.number),
        )

    def find(self, version: object, path: str) -> StoredVersion:
        """Return a version by its number or 'latest', or the default one if it is None.

        Raises: RequestError, NotFound, with the path where the request names it.
        """
        if version == LATEST:
            return self.latest
        number = self.default if version is None else parse_version(version, path)
        for each in self.versions:
            if each.number == number:
                return each
        raise NotFound(f"The skill {self.id!r} has no version {number}.", param=path)


def parse_version(version: object, path: str) -> int:
    """Return the number of a version. Raises: RequestError."""
    if isinstance(version, str) and version.isascii() and version.isdigit() and len(version) <= 9:
        number = int(version)
        if number > 0 and version == str(number):
            return number
    raise RequestError(
        f"Invalid value: {str(version)[:100]!r}. A version is a positive integer as a string, or "
        f"{LATEST!r}.",
        param=path,
        code="invalid_value",
    )


Skills = tuple[StoredSkill, ...]
"""The skills of a tenant, the oldest first."""

_decode = msgspec.json.Decoder(Skills).decode


class SkillIndex:
    """The skills of all tenants, without their archives."""

    def __init__(self, values: SharedValues) -> None:
        self._values = values

    async def load(self, tenant: str) -> Skills:
        """Raises: StoreError."""
        return _skills_of(await self._values.compare_and_set(_name(tenant), b""))

    async def get(self, tenant: str, skill_id: str, *, path: str = "skill_id") -> StoredSkill:
        """Raises: NotFound, StoreError."""
        return find_skill(await self.load(tenant), skill_id, path)

    async def change(self, tenant: str, edit: Callable[[Skills], Skills]) -> None:
        """Replace the tenant's skills by what `edit` makes of them; it may run several times.

        Raises: what `edit` raises; StoreError.
        """
        name = _name(tenant)
        stored = await self._values.compare_and_set(name, b"")
        for _ in range(MAX_ATTEMPTS):
            before = _skills_of(stored)
            changed_skills = edit(before)
            if changed_skills == before:
                return
            changed = msgspec.json.encode(changed_skills)
            stored = await self._values.compare_and_set(name, changed, expected=stored)
            if stored == changed:
                return
        raise StoreError("Other requests keep changing the skills of this tenant.")


def find_skill(skills: Sequence[StoredSkill], skill_id: str, path: str) -> StoredSkill:
    """Raises: NotFound."""
    for skill in skills:
        if skill.id == skill_id:
            return skill
    raise NotFound(f"Skill with id {skill_id[:100]!r} not found.", param=path)


def replaced(skills: Skills, new: StoredSkill) -> Skills:
    """Return the skills with this one in place of the one with its id."""
    return tuple(new if each.id == new.id else each for each in skills)


def check_room(skills: Skills) -> None:
    """Raises: RequestError if the tenant has as many versions as it may have."""
    if sum(len(skill.versions) for skill in skills) >= MAX_VERSIONS:
        raise RequestError(
            f"You have {MAX_VERSIONS} versions of skills, which is the maximum. Delete those that "
            "you no longer need.",
            param="files",
            code="skill_quota_exceeded",
        )


def with_version(skill: StoredSkill, version: StoredVersion, *, is_default: bool) -> StoredSkill:
    """Return the skill with one more version, which gets the next number."""
    number = skill.last_number + 1
    return replace(
        skill,
        last_number=number,
        default=number if is_default else skill.default,
        versions=(*skill.versions, replace(version, number=number)),
    )


def without_version(skill: StoredSkill, number: int, path: str) -> StoredSkill | None:
    """Return the skill without this version, None if it was the only one.

    Raises: NotFound; RequestError for the default version while there are others.
    """
    skill.find(str(number), path)
    if len(skill.versions) == 1:
        return None
    if number == skill.default:
        raise RequestError(
            f"Version {number} is the default version. Make another one the default first.",
            param=path,
            code="invalid_value",
        )
    return replace(skill, versions=tuple(v for v in skill.versions if v.number != number))


def _name(tenant: str) -> str:
    return f"skills:{tenant}"


def _skills_of(stored: bytes) -> Skills:
    return _decode(stored) if stored else ()
