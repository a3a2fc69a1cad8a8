"""The sources of settings, by increasing priority: defaults, file, environment, command line."""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.invalid_values import in_words
from antiphon.entrypoints.settings.models import convert_models
from antiphon.entrypoints.settings.options import convert_own_options
from antiphon.entrypoints.settings.schema import Settings
from antiphon.entrypoints.settings.sections import McpServer
from antiphon.entrypoints.settings.storage import without_password
from antiphon.entrypoints.settings.table import PREFIX, SECTIONS, SETTINGS, Setting

DEFAULT_FILE = Path("antiphon.toml")
CONFIG_VARIABLE = "ANTIPHON_CONFIG"


class SourceValue(NamedTuple):
    """A setting's value in one source. `name` is how that source spells the setting."""

    setting: Setting
    name: str
    value: Any
    is_text: bool


def find_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: `path`, else ANTIPHON_CONFIG, else antiphon.toml if it exists.

    Raises: SettingsError if `path` or ANTIPHON_CONFIG names a file that does not exist.
    """
    if path is None and (from_environment := environ.get(CONFIG_VARIABLE)):
        path = Path(from_environment)
    if path is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if not path.expanduser().is_file():
        raise SettingsError(f"The settings file {str(path)!r} does not exist.")
    return path.expanduser()


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Return the settings from all sources. `options` is the command line, keyed by setting path.

    Every value of every source is checked, even one that a later source overrides.
    Raises: SettingsError with the setting's name as the source spells it and what is allowed.
    """
    file_table = _read_toml(file)
    mcp_servers = _convert_mcp_servers(file_table.pop("mcp_servers", []), file)
    models = convert_models(file_table.pop("models", []), file)
    own_options = convert_own_options(file_table.pop("options", {}), file)
    tree: dict[str, Any] = {"mcp_servers": mcp_servers, "models": models, "options": own_options}
    for source in _sources(file_table, file, environ, options):
        for source_value in source:
            *sections, key = source_value.setting.path.split(".")
            table = tree
            for section in sections:
                table = table.setdefault(section, {})
            table[key] = _convert(source_value)
    return msgspec.convert(tree, Settings, dec_hook=_to_path)


def is_set(
    path: str, file: Path | None, environ: Mapping[str, str], options: Mapping[str, Any]
) -> bool:
    """Return whether a source has a value for the setting. Raises: SettingsError."""
    table = _read_toml(file)
    for tables in ("mcp_servers", "models", "options"):
        table.pop(tables, None)
    return any(
        value.setting.path == path
        for source in _sources(table, file, environ, options)
        for value in source
    )


def _sources(
    table: Mapping[str, Any],
    file: Path | None,
    environ: Mapping[str, str] | None,
    options: Mapping[str, Any] | None,
) -> Sequence[Iterator[SourceValue]]:
    return (
        _values_of_file(table, file),
        _values_of_environment(environ or {}),
        _values_of_command_line(options or {}),
    )


def _read_toml(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The settings file {str(file)!r} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings file {str(file)!r} is not TOML: {error}.") from None


def _convert_mcp_servers(tables: Any, file: Path | None) -> list[McpServer]:
    """Return the MCP servers in the file. Errors contain no values, which may be secret."""
    if not isinstance(tables, list):
        raise SettingsError(f"mcp_servers in {file} must be tables: [[mcp_servers]].")
    servers: list[McpServer] = []
    for position, table in enumerate(tables):
        try:
            servers.append(msgspec.convert(table, McpServer))
        except msgspec.ValidationError as error:
            reason = in_words(error, McpServer)
            raise SettingsError(
                f"mcp_servers[{position}] in {file} is invalid: {reason}."
            ) from None
    return servers


def _values_of_file(table: Mapping[str, Any], file: Path | None) -> Iterator[SourceValue]:
    for path, value in _flatten(table):
        if path in SECTIONS:
            raise SettingsError(f"{path} in {file} must be a table, not {value!r}.")
        name = f"{path} in {file}"
        yield SourceValue(_find_setting(path, name), name, value, is_text=False)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = prefix + key
        if path in SECTIONS and isinstance(value, dict):
            yield from _flatten(value, f"{path}.")
        else:
            yield path, value


# Kubernetes sets these variables in every pod of a namespace that has a Service named "antiphon".
_KUBERNETES_VARIABLE = re.compile(
    r"ANTIPHON_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)"
)


def _values_of_environment(environ: Mapping[str, str]) -> Iterator[SourceValue]:
    """Yield the variables that are set. An empty one counts as not set, for compose files."""
    for name in sorted(environ):
        value = environ[name]
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE or not value:
            continue
        if _KUBERNETES_VARIABLE.fullmatch(name) or (name == "ANTIPHON_PORT" and "://" in value):
            continue
        path = name.removeprefix(PREFIX).lower().replace("__", ".")
        yield SourceValue(_find_setting(path, f"The variable {name}"), name, value, is_text=True)


def _values_of_command_line(options: Mapping[str, Any]) -> Iterator[SourceValue]:
    for path, value in options.items():
        setting = SETTINGS[path]
        name = "MODEL" if path == "model" else setting.option
        yield SourceValue(setting, name, value, is_text=isinstance(value, str))


def _find_setting(path: str, name: str) -> Setting:
    if path in SETTINGS:
        return SETTINGS[path]
    section, _, key = path.rpartition(".")
    siblings = {each.rpartition(".")[2]: each for each in SETTINGS if _section_of(each) == section}
    # A section's name alone makes no two keys alike.
    matches = [siblings[each] for each in difflib.get_close_matches(key, siblings, n=1)]
    matches = matches or difflib.get_close_matches(path, SETTINGS, n=1, cutoff=0.8)
    # Suggest a variable for a variable, and a key for a key.
    names = [SETTINGS[match].variable if PREFIX in name else match for match in matches]
    if names:
        advice = f"did you mean {names[0]}?"
    elif section and siblings:
        advice = f"{section} has {', '.join(siblings)}."
    else:
        advice = "`antiphon serve --help-all` lists them all."
    raise SettingsError(f"{name} is not a setting; {advice}")


def _section_of(path: str) -> str:
    return path.rpartition(".")[0]


def _convert(source_value: SourceValue) -> Any:
    setting, name, value, is_text = source_value
    try:
        parsed = shlex.split(value) if is_text and setting.is_list else value
        return msgspec.convert(parsed, setting.type, strict=not is_text, dec_hook=_to_path)
    except (msgspec.ValidationError, ValueError):
        actual = "" if setting.is_secret else f", not {without_password(repr(value))}"
        raise SettingsError(f"{name} must be {setting.allowed}{actual}.") from None


def _to_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path) and value:
        return Path(value).expanduser()
    raise ValueError(f"not a path: {value!r}")
