"""Where settings come from: defaults < TOML file < environment < command line; the last wins."""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.schema import Settings, without_password
from antiphon.entrypoints.settings.sections import McpServer
from antiphon.entrypoints.settings.table import PREFIX, SECTIONS, SETTINGS, Setting

DEFAULT_FILE = Path("antiphon.toml")
CONFIG_VARIABLE = "ANTIPHON_CONFIG"


class ResolvedSetting(NamedTuple):
    """A value as a source has it. `name` is what its reader wrote; `is_text` until converted."""

    setting: Setting
    name: str
    value: Any
    is_text: bool


def find_file(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: `named`, else ANTIPHON_CONFIG, else antiphon.toml if it exists.

    Raises: SettingsError when a file was named that does not exist.
    """
    if named is None and (from_environment := environ.get(CONFIG_VARIABLE)):
        named = Path(from_environment)
    if named is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if not named.expanduser().is_file():
        raise SettingsError(f"The settings file {str(named)!r} does not exist.")
    return named.expanduser()


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings of all sources. `given` is the command line, by the paths of settings.

    Every value of every source is checked, even one that a later source replaces.
    Raises: SettingsError, one sentence with the name as it was written and what is allowed.
    """
    in_file = _table(file)
    tree: dict[str, Any] = {"mcp_servers": _mcp_servers(in_file.pop("mcp_servers", []), file)}
    of_file = _in_table(in_file, file)
    for source in (of_file, _in_environment(environ or {}), _on_command_line(given or {})):
        for found in source:
            *sections, key = found.setting.path.split(".")
            table = tree
            for section in sections:
                table = table.setdefault(section, {})
            table[key] = _converted(found)
    return msgspec.convert(tree, Settings, dec_hook=_path)


def _table(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {str(file)!r} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings file {str(file)!r} is not TOML: {error}.") from None


def _mcp_servers(tables: Any, file: Path | None) -> list[McpServer]:
    """Return the servers of the file. What is wrong is named, but no value: it may be a secret."""
    if not isinstance(tables, list):
        raise SettingsError(f"mcp_servers in {file} must be tables: [[mcp_servers]].")
    found: list[McpServer] = []
    for position, each in enumerate(tables):
        try:
            found.append(msgspec.convert(each, McpServer))
        except msgspec.ValidationError as error:
            raise SettingsError(f"mcp_servers[{position}] in {file} is wrong: {error}.") from None
    return found


def _in_table(table: Mapping[str, Any], file: Path | None) -> Iterator[ResolvedSetting]:
    for path, value in _leaves(table):
        if path in SECTIONS:
            raise SettingsError(f"{path} in {file} must be a table, not {value!r}.")
        yield ResolvedSetting(
            _setting(path, f"{path} in {file}"), f"{path} in {file}", value, is_text=False
        )


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = prefix + key
        if path in SECTIONS and isinstance(value, dict):
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


# A Kubernetes Service named "antiphon" puts variables of these names into every pod beside it.
_OF_KUBERNETES = re.compile(r"ANTIPHON_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")


def _in_environment(environ: Mapping[str, str]) -> Iterator[ResolvedSetting]:
    """Yield the variables that are set; an empty one counts as not set, as compose files need."""
    for name in sorted(environ):
        value = environ[name]
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE or not value:
            continue
        if _OF_KUBERNETES.fullmatch(name) or (name == "ANTIPHON_PORT" and "://" in value):
            continue
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        yield ResolvedSetting(_setting(path, f"The variable {name}"), name, value, is_text=True)


def _on_command_line(given: Mapping[str, Any]) -> Iterator[ResolvedSetting]:
    for path, value in given.items():
        setting = SETTINGS[path]
        name = "MODEL" if path == "model" else setting.option
        yield ResolvedSetting(setting, name, value, is_text=isinstance(value, str))


def _setting(path: str, name: str) -> Setting:
    if path in SETTINGS:
        return SETTINGS[path]
    likely = difflib.get_close_matches(path, SETTINGS, n=1)
    # A variable is answered with a variable, a key with a key.
    names = [SETTINGS[each].variable if PREFIX in name else each for each in likely]
    advice = f"did you mean {names[0]}?" if names else "`antiphon serve --help` lists them all."
    raise SettingsError(f"{name} is not a setting; {advice}")


def _converted(found: ResolvedSetting) -> Any:
    setting, value = found.setting, found.value
    try:
        if found.is_text and setting.is_list:
            value = shlex.split(value)
        return msgspec.convert(value, setting.type, strict=not found.is_text, dec_hook=_path)
    except (msgspec.ValidationError, ValueError):
        shown = "" if setting.is_secret else f", not {without_password(repr(found.value))}"
        raise SettingsError(f"{found.name} must be {setting.allowed}{shown}.") from None


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path) and value:
        return Path(value).expanduser()
    raise ValueError(f"not a path: {value!r}")
