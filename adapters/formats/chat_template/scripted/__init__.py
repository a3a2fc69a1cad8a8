"""Markup of the scripted engine: its own, or that of any family of the table."""

from antiphon.adapters.formats.chat_template.scripted.family_markup import (
    FamilyMarkup,
    scripted_family,
)
from antiphon.adapters.formats.chat_template.scripted.markup import ScriptedMarkup, scripted_chat

__all__ = ["FamilyMarkup", "ScriptedMarkup", "scripted_chat", "scripted_family"]
