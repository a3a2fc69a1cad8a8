"""Prompt templates, by id and version."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from antiphon.domain.requests.prompt_templates import PromptTemplate


class PromptTemplates(Protocol):
    """Templates that requests name in `prompt`."""

    async def start(self) -> None:
        """Load the templates. Does nothing by default.

        Raises: SettingsError for a template that cannot be used.
        """
        return

    async def aclose(self) -> None:
        """Called when the server stops. Does nothing by default."""
        return

    @abstractmethod
    async def get(self, prompt_id: str, version: str | None) -> PromptTemplate | None:
        """Return that version, or the newest if `version` is None; None if it does not exist."""
