"""Prompt templates, by name and version."""

from __future__ import annotations

from typing import Protocol

from antiphon.domain.prompt_templates import PromptTemplate


class PromptTemplates(Protocol):
    """Templates that requests name in `prompt`."""

    async def start(self) -> None:
        """Read what must be read. Raises: SettingsError for a template that cannot be used."""

    async def get(self, prompt_id: str, version: str | None) -> PromptTemplate | None:
        """Return that version, or the newest where none is named; None if there is none."""
