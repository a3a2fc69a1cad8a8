"""Skills: folders with instructions that a model reads when it needs them (SKILL.md).

The names and descriptions have the limits of the Agent Skills format. A model is told the names,
descriptions and paths of its skills in the description of the tool that can read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.domain.bounds import Name
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.json import Json

MAX_SKILLS = 200
"""Of a container, or of a client's shell."""

MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1024
MAX_LOCAL_PATH_CHARS = 4096

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

OMITTED_DATA = "<omitted>"
"""Stands for the archive of an inline skill where a Response shows the request's tools."""


class Skill(Struct, frozen=True, kw_only=True):
    """A skill; its name and description are those of the default version."""

    id: str
    object: Literal["skill"] = "skill"
    created_at: int
    name: str
    description: str
    default_version: str
    latest_version: str


class SkillVersion(Struct, frozen=True, kw_only=True):
    """A version of a skill; versions are numbered from 1."""

    id: str
    object: Literal["skill.version"] = "skill.version"
    skill_id: str
    created_at: int
    name: str
    description: str
    version: str


class NewDefaultVersion(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/skills/{id}`."""

    default_version: Name


class SkillInfo(Struct, frozen=True, kw_only=True):
    """The facts of a skill that a model is told; `path` is its folder."""

    name: str
    description: str
    path: str


def describe_skills(skills: Sequence[SkillInfo]) -> str:
    """Return the text that tells a model of its skills, in their order; "" if there are none.

    >>> print(describe_skills([SkillInfo(name="csv", description="Reads CSV.", path="/s/csv")]))
    Skills are folders with instructions. Before a task that fits a skill, read its SKILL.md:
    - csv (/s/csv/SKILL.md): Reads CSV.
    """
    if not skills:
        return ""
    lines = [
        f"- {each.name} ({each.path.rstrip('/')}/SKILL.md): {' '.join(each.description.split())}"
        for each in skills
    ]
    head = "Skills are folders with instructions. Before a task that fits a skill, read its"
    return "\n".join([f"{head} SKILL.md:", *lines])


def check_name(name: object, path: str) -> str:
    """Return a skill's name. Raises: RequestError with this path."""
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or not NAME.fullmatch(name):
        raise invalid_skill(
            f"The name of a skill is 1 to {MAX_NAME_CHARS} lowercase letters (a-z), digits and "
            f"single hyphens between them, not {str(name)[:100]!r}.",
            path,
        )
    return name


def check_description(description: object, path: str) -> str:
    """Return a skill's description on one line. Raises: RequestError with this path."""
    text = " ".join(description.split()) if isinstance(description, str) else ""
    if not 1 <= len(text) <= MAX_DESCRIPTION_CHARS:
        raise invalid_skill(
            f"The description of a skill is a text of 1 to {MAX_DESCRIPTION_CHARS} characters.",
            path,
        )
    return text


def skills_in(options: Mapping[str, Any], path: str) -> Sequence[Json]:
    """Return the `skills` of these options, whose place is `path`. Raises: RequestError."""
    skills = options.get("skills")
    if skills is None:
        return ()
    if (
        not isinstance(skills, list | tuple)
        or len(skills) > MAX_SKILLS
        or not all(isinstance(each, dict) for each in skills)
    ):
        raise invalid_skill(f"Send a list of up to {MAX_SKILLS} skills.", path)
    return skills


def local_skills(environment: Mapping[str, Any], path: str) -> list[SkillInfo]:
    """Return the skills of a shell that the client runs. Raises: RequestError.

    `path` is the place of the environment in the request.
    """
    found = []
    for position, each in enumerate(skills_in(environment, f"{path}.skills")):
        place = f"{path}.skills[{position}]"
        folder = each.get("path")
        if folder is None:
            raise missing_parameter(f"{place}.path")
        if not isinstance(folder, str) or not 1 <= len(folder) <= MAX_LOCAL_PATH_CHARS:
            raise invalid_skill(
                f"The path of a skill is a text of 1 to {MAX_LOCAL_PATH_CHARS} characters.",
                f"{place}.path",
            )
        name = each.get("name")
        # The client's own, which become no path here: a shell of the client may name them freely.
        if not isinstance(name, str) or not 1 <= len(name.strip()) <= MAX_NAME_CHARS:
            raise invalid_skill(
                f"The name of a skill is a text of 1 to {MAX_NAME_CHARS} characters.",
                f"{place}.name",
            )
        found.append(
            SkillInfo(
                name=" ".join(name.split()),
                description=check_description(each.get("description"), f"{place}.description"),
                path=" ".join(folder.split()),
            )
        )
    return found


def without_data(options: Json) -> Json:
    """Return a container's options without the archives of inline skills, to show or store.

    >>> skill = {"type": "inline", "source": {"type": "base64", "data": "UEs="}}
    >>> without_data({"skills": [skill]})["skills"][0]["source"]["data"]
    '<omitted>'
    """
    skills = options.get("skills")
    if not isinstance(skills, list | tuple):
        return options
    return {**options, "skills": [_without_data(each) for each in skills]}


def _without_data(skill: Any) -> Any:
    source = skill.get("source") if isinstance(skill, dict) else None
    if not isinstance(source, dict) or "data" not in source:
        return skill
    return {**skill, "source": {**source, "data": OMITTED_DATA}}


def invalid_skill(message: str, path: str) -> RequestError:
    return RequestError(message, param=path, code="invalid_value")
