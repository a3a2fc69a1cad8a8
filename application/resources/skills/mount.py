"""The skills of a container: found by what a request says, and read when the container starts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from msgspec import Struct

from antiphon.application.ports import MountedSkill
from antiphon.application.resources.skills.archive import SkillFacts, read_facts
from antiphon.application.resources.skills.contents import SkillContents
from antiphon.application.resources.skills.index import (
    LATEST,
    SkillIndex,
    Skills,
    find_skill,
    parse_version,
)
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.errors import NotFound, RequestError, SandboxError, StoreError
from antiphon.domain.errors import missing_parameter as missing
from antiphon.domain.requests.skills import (
    SkillInfo,
    check_description,
    check_name,
    invalid_skill,
    skills_in,
)

FOLDER = "/mnt/skills"
"""The folder of all skills in a container; each has its name there."""

TYPES = ("skill_reference", "inline")


class OperatorSkill(Struct, frozen=True, kw_only=True):
    """A skill of the operator's, which all tenants may use by its name."""

    facts: SkillFacts
    archive: bytes


class FindSkills:
    """Finds the skills that a request mounts: those of the tenant, the operator's, or its own."""

    def __init__(
        self,
        index: SkillIndex,
        contents: SkillContents,
        operator_skills: Mapping[str, OperatorSkill],
        *,
        can_mount: bool,
        max_bytes: int,
    ) -> None:
        self._index = index
        self._contents = contents
        self._operator_skills = operator_skills
        self._can_mount = can_mount
        self._max_bytes = max_bytes

    async def __call__(
        self, options: Mapping[str, Any], path: str, *, tenant: str
    ) -> tuple[MountedSkill, ...]:
        """Return the skills of a container's options, in their order.

        `path` is the place of the field `skills`. Raises: RequestError, StoreError.
        """
        requested = skills_in(options, path)
        needs_index = any(each.get("type") == "skill_reference" for each in requested)
        known = await self._index.load(tenant) if needs_index else ()
        skills: dict[str, MountedSkill] = {}
        for position, each in enumerate(requested):
            place = f"{path}[{position}]"
            skill = await self._find(each, place, tenant, known)
            if skill.info.name in skills:
                raise invalid_skill(
                    f"Two skills of the container have the name {skill.info.name!r}.", place
                )
            skills[skill.info.name] = skill
        if skills and not self._can_mount:
            raise invalid_skill("Containers on this server have no skills.", path)
        if sum(skill.unpacked_bytes for skill in skills.values()) > self._max_bytes:
            limit_mb = self._max_bytes // 1024**2
            raise invalid_skill(
                f"The skills of a container may have up to {limit_mb} MB when they are unpacked.",
                path,
            )
        return tuple(skills.values())

    async def _find(
        self, skill: Mapping[str, Any], path: str, tenant: str, known: Skills
    ) -> MountedSkill:
        kind = skill.get("type")
        if kind == "skill_reference":
            return self._find_reference(skill, path, tenant, known)
        if kind == "inline":
            return await _read_inline(skill, path)
        raise invalid_skill(
            f"Invalid value: {str(kind)[:100]!r}. Supported values are: "
            f"{', '.join(map(repr, TYPES))}.",
            f"{path}.type",
        )

    def _find_reference(
        self, reference: Mapping[str, Any], path: str, tenant: str, known: Skills
    ) -> MountedSkill:
        """Return the skill, which is the operator's or among the tenant's. Raises: RequestError."""
        skill_id, version = reference.get("skill_id"), reference.get("version")
        if skill_id is None:
            raise missing(f"{path}.skill_id")
        if not isinstance(skill_id, str):
            raise invalid_skill("The id of a skill is a text.", f"{path}.skill_id")
        if own := self._operator_skills.get(skill_id):
            _check_only_version(version, skill_id, f"{path}.version")
            return _to_mounted(own.facts, f"operator:{skill_id}", partial(_return, own.archive))
        skill = find_skill(known, skill_id, f"{path}.skill_id")
        found = skill.find(version, f"{path}.version")
        return MountedSkill(
            info=_info_of(found.name, found.description),
            version=found.id,
            unpacked_bytes=found.unpacked_bytes,
            read=partial(self._read, tenant, found.id, found.name),
        )

    async def _read(self, tenant: str, version_id: str, name: str) -> bytes:
        """Raises: SandboxError."""
        try:
            return await self._contents.read(tenant, version_id)
        except (NotFound, StoreError):
            raise SandboxError(f"The skill {name!r} can no longer be read.") from None


def _check_only_version(version: object, name: str, path: str) -> None:
    """Raises: RequestError for a version that a skill of the operator's does not have."""
    if version not in (None, LATEST) and parse_version(version, path) != 1:
        raise NotFound(f"The skill {name!r} is the operator's and has only version 1.", param=path)


async def _read_inline(skill: Mapping[str, Any], path: str) -> MountedSkill:
    """Raises: RequestError."""
    for field in ("name", "description", "source"):
        if skill.get(field) is None:
            raise missing(f"{path}.{field}")
    name = check_name(skill["name"], f"{path}.name")
    description = check_description(skill["description"], f"{path}.description")
    source = skill["source"]
    if not isinstance(source, dict):
        raise invalid_skill("The source of a skill is an object.", f"{path}.source")
    for field, value in (("type", "base64"), ("media_type", "application/zip")):
        if source.get(field) != value:
            raise invalid_skill(f"Supported values are: {value!r}.", f"{path}.source.{field}")
    data, place = source.get("data"), f"{path}.source.data"
    if data is None:
        raise missing(place)
    if not isinstance(data, str):
        raise invalid_skill("The data of a skill is a text in base64.", place)
    # Always in a thread: a small archive may be a large one when it is unpacked.
    facts, digest = await compute_in_thread(_read_data, data, place)
    named = SkillFacts(name=name, description=description, unpacked_bytes=facts.unpacked_bytes)
    # The text stays in memory with its request anyway.
    return _to_mounted(named, digest, partial(_decode_again, data, place))


def _read_data(data: str, path: str) -> tuple[SkillFacts, str]:
    """Return the facts of an archive in base64, and its digest. Raises: RequestError."""
    archive = _decode(data, path)
    return read_facts(archive, path), sha256(archive).hexdigest()


def _decode(data: str, path: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_skill("The data of a skill is a text in base64.", path) from None


async def _decode_again(data: str, path: str) -> bytes:
    try:
        return await compute_in_thread(_decode, data, path)
    except RequestError as error:
        raise SandboxError(error.message) from None


async def _return(archive: bytes) -> bytes:
    return archive


def _to_mounted(facts: SkillFacts, version: str, read: Any) -> MountedSkill:
    return MountedSkill(
        info=_info_of(facts.name, facts.description),
        version=version,
        unpacked_bytes=facts.unpacked_bytes,
        read=read,
    )


def _info_of(name: str, description: str) -> SkillInfo:
    return SkillInfo(name=name, description=description, path=f"{FOLDER}/{name}")
