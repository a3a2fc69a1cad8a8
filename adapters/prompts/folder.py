"""Prompt templates in a folder: a subfolder for each prompt, with a TOML file for each version."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from antiphon.application.ports import PromptTemplates
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.requests.prompt_templates import PromptTemplate, template_of

_NUMBER = re.compile(r"(\d+)")


class FolderPromptTemplates(PromptTemplates):
    """Reads every `ID/VERSION.toml` once, at the start.

    No file is looked up by a name from a request, so a request cannot reach any other file.
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
        return next((template for template in versions if template.version == version), None)


def _read(folder: Path) -> dict[str, list[PromptTemplate]]:
    """Return the templates of each prompt, lowest version first."""
    if not folder.is_dir():
        raise SettingsError(f"The folder of prompt templates {str(folder)!r} does not exist.")
    templates: dict[str, list[PromptTemplate]] = {}
    for file in folder.glob("*/*.toml"):
        templates.setdefault(file.parent.name, []).append(_read_template(file))
    for versions in templates.values():
        versions.sort(key=lambda template: _version_key(template.version))
    return templates


def _read_template(file: Path) -> PromptTemplate:
    try:
        return template_of(tomllib.loads(file.read_text(encoding="utf-8")), file.stem)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = str(error).rstrip(".")
    except RequestError as error:
        reason = f"{error.param}: {error.message.rstrip('.')}"
    raise SettingsError(f"The prompt template {str(file)!r} cannot be used: {reason}.")


def _version_key(version: str) -> list[tuple[int, int, str]]:
    """Return a sort key that compares the numbers in versions as numbers.

    >>> sorted(["10", "9", "2.1", "2.0-beta"], key=_version_key)
    ['2.0-beta', '2.1', '9', '10']
    """
    parts = _NUMBER.split(version)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]
