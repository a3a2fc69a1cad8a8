"""Prompt templates in a folder: a folder a prompt, in it a TOML file a version."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from antiphon.application.ports import PromptTemplates
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.prompt_templates import PromptTemplate, template_of

_NUMBER = re.compile(r"(\d+)")


class FolderPromptTemplates(PromptTemplates):
    """Reads `ID/VERSION.toml` once, at the start: no request names a file, so none can reach one
    that is not a template.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions: Mapping[str, list[PromptTemplate]] = {}

    async def start(self) -> None:
        self._versions = await asyncio.to_thread(_read, self._folder)

    async def get(self, prompt_id: str, version: str | None) -> PromptTemplate | None:
        versions = self._versions.get(prompt_id, [])
        if version is None:
            return versions[-1] if versions else None
        return next((each for each in versions if each.version == version), None)


def _read(folder: Path) -> dict[str, list[PromptTemplate]]:
    """Return the templates of each prompt, oldest first."""
    if not folder.is_dir():
        raise SettingsError(f"The folder of prompt templates {str(folder)!r} does not exist.")
    found: dict[str, list[PromptTemplate]] = {}
    for file in folder.glob("*/*.toml"):
        found.setdefault(file.parent.name, []).append(_template(file))
    for versions in found.values():
        versions.sort(key=lambda template: _age(template.version))
    return found


def _template(file: Path) -> PromptTemplate:
    try:
        return template_of(tomllib.loads(file.read_text(encoding="utf-8")), file.stem)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = str(error).rstrip(".")
    except RequestError as error:
        reason = f"{error.param}: {error.message.rstrip('.')}"
    raise SettingsError(f"The prompt template {str(file)!r} cannot be used: {reason}.")


def _age(version: str) -> list[tuple[int, int, str]]:
    """Return what sorts versions as people count them.

    >>> sorted(["10", "9", "2.1", "2.0-beta"], key=_age)
    ['2.0-beta', '2.1', '9', '10']
    """
    pieces = _NUMBER.split(version)
    return [(1, int(each), "") if each.isdigit() else (0, 0, each) for each in pieces]
