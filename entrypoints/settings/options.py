"""The operator's own classes, and their options: the tables `[options.SETTING]` of the file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.domain.errors import SettingsError

OWN_CLASS = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
"""`package.module:Class`, as a part of a pattern."""

OWN_CLASSES: Mapping[str, str] = {
    "store": "The store",
    "file_store": "The file store",
    "vector_stores": "The vector stores",
    "event_log": "The event log",
    "embedding_engine": "The embedding engine",
    "web_search": "The web search",
    "image_generator": "The image generator",
    "sandboxes": "The sandboxes",
    "program_runner": "The program runner",
    "prompt_templates": "The prompt templates",
    "audit_log": "The audit log",
    "tool": "The tool server",
    "guard": "The guard",
}
"""The settings that can name a class, and how messages begin that speak of it."""


LISTS: Mapping[str, str] = {"tool": "tool servers", "guard": "guards"}
"""Those that can name several classes, each with a label, and what these are."""


def is_own_class(value: object) -> bool:
    """Return whether a setting names a class.

    >>> is_own_class("my_package.files:MyFiles"), is_own_class("memory"), is_own_class(None)
    (True, False, False)
    """
    return re.fullmatch(OWN_CLASS, str(value)) is not None


class OwnOptions(Struct, frozen=True):
    """The options of each class by its setting; those of `LISTS` by their label, too."""

    tables: Mapping[str, Mapping[str, Any]] = {}

    def of(self, setting: str) -> Mapping[str, Any]:
        return self.tables.get(setting, {})

    def __repr__(self) -> str:
        return f"OwnOptions({', '.join(self.tables)})"  # the options may be secret


def convert_own_options(tables: Any, file: Path | None) -> OwnOptions:
    """Return the options in the file. Errors contain no values, which may be secret."""
    for path, table in _paths_of(tables):
        if not isinstance(table, dict):
            raise SettingsError(f"{path} in {file} must be a table: [{path}].")
    for setting in tables:
        if setting not in OWN_CLASSES:
            matches = difflib.get_close_matches(setting, OWN_CLASSES, n=1)
            advice = f"did you mean {matches[0]}?" if matches else f"it is {_choices()}."
            raise SettingsError(
                f"options.{setting} in {file} is for no setting that can name a class; {advice}"
            )
    return OwnOptions(tables)


def _paths_of(tables: Any) -> Iterator[tuple[str, Any]]:
    yield "options", tables
    for setting, table in tables.items():
        yield f"options.{setting}", table
    for setting in LISTS:
        for label, table in tables.get(setting, {}).items():
            yield f"options.{setting}.{label}", table


def _choices() -> str:
    *names, last = OWN_CLASSES
    return f"{', '.join(names)} or {last}"


def check_used(options: OwnOptions, values: Mapping[str, Any]) -> None:
    """Raises: SettingsError for options of a setting that names no class.

    Those of `LISTS` are checked with their labels, which only the classes may know.
    """
    for setting in options.tables:
        if setting not in LISTS and not is_own_class(values[setting]):
            raise SettingsError(
                f"The table [options.{setting}] is for a class of your own, but {setting} names "
                "none: set it to package.module:Class, or remove the table."
            )
