"""Write docs/reference/settings.md from the settings' schema: `make docs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import get_args, get_type_hints

from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import FieldInfo, fields

from antiphon.adapters.engines.llama.options import LlamaOptions
from antiphon.adapters.engines.vllm_http.options import VllmHttpOptions
from antiphon.adapters.models.chat_completions import ChatOptions
from antiphon.entrypoints.settings import SETTINGS, McpServer, ModelTable, Setting
from antiphon.entrypoints.settings.models import COMMON_FIELDS
from antiphon.entrypoints.settings.options import OWN_CLASSES
from antiphon.entrypoints.settings.sections import Scripted
from antiphon.entrypoints.settings.table import describe_values, format_default
from antiphon.entrypoints.wiring.models import VllmOptions

PAGE = Path(__file__).parent / "reference" / "settings.md"
INTRO = """# Settings

Drawn from the schema in `entrypoints/settings` by `make docs`; a test checks that it is up to date.

Each setting can be given in three ways: as an option of `antiphon serve`, as an environment
variable, or as a key in the settings file. Options override variables, and variables override the
file:

<!-- file: antiphon.toml -->
```toml
store = "memory"
keep_responses = 500

[tools]
timeout_s = 20
```

```console
$ export ANTIPHON_TOOLS__TIMEOUT_S=30
$ antiphon serve --keep-responses 1000
```

- **The settings file** is the one named by `--config` or `ANTIPHON_CONFIG`. Otherwise it is
  `antiphon.toml` in the current folder, if there is one. A dot in a key stands for a table:
  `tools.timeout_s` is `timeout_s` under `[tools]`.
- **An empty variable** counts as not set. Separate the values of a list with spaces, and quote
  them as in a shell: `ANTIPHON_FETCH__HOSTS="a.org b.org"`.
- **To give a list as an option**, repeat it: `--fetch-hosts a.org --fetch-hosts b.org`. Every
  option that is true or false also has a negative form: `--no-shell`.
- The server does not start with an unknown setting or an invalid value. The error names the
  setting and its source.
"""
PLACES = {"model": "MODEL", "engine_options": "-- OPTIONS"}
"""Where the command line has two settings that are no options."""


ENGINE_OPTIONS: Mapping[str, type[Struct]] = {
    "vllm": VllmOptions,
    "vllm_http": VllmHttpOptions,
    "llama": LlamaOptions,
    "chat": ChatOptions,
    "scripted": Scripted,
}


def page() -> str:
    """Return the whole page."""
    by_group = groupby(SETTINGS.values(), key=attrgetter("group"))
    parts = [INTRO]
    for group, settings in by_group:
        parts.append(f"## {group}\n")
        parts.append("\n".join(_table(settings)) + "\n")
    tables = (_models(), _own_classes(), _mcp_servers())
    return "\n".join([*parts, "\n\n".join("\n".join(lines) for lines in tables)]) + "\n"


def _table(settings: Iterable[Setting]) -> Iterator[str]:
    yield "| option, variable, key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for setting in settings:
        option = PLACES.get(setting.path, setting.option)
        names = "<br>".join(f"`{name}`" for name in (option, setting.variable, setting.path))
        cells = (names, *map(_escaped, (setting.allowed, setting.default, setting.text)))
        yield f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    for character in "\\|*<[":
        text = text.replace(character, f"\\{character}")
    return text


def _models() -> Iterator[str]:
    yield "## Models in tables\n"
    yield "Each table `[[models]]` is one model of a server with several. Only the settings file"
    yield "can hold them; see [several models](../guides/models.md). All engines have these keys:\n"
    yield from _fields(ModelTable, COMMON_FIELDS)
    for engine, options in ENGINE_OPTIONS.items():
        yield f'\nThe options of `engine = "{engine}"`:\n'
        yield from _fields(options, options.__struct_fields__)
    yield "\nAll other keys are options of a [class of your own](../guides/extend.md#models)."


def _own_classes() -> Iterator[str]:
    yield "## Options of your own classes\n"
    yield "A table `[options.SETTING]` holds the options of the class that this setting names, and"
    yield "`[options.tool.LABEL]` those of a tool server. Only the settings file can hold them. The"
    yield "settings that can name a class are"
    yield f"{', '.join(f'`{name}`' for name in OWN_CLASSES)};"
    yield "see [classes of your own](../guides/extend.md)."


def _fields(table: type[Struct], names: Sequence[str]) -> Iterator[str]:
    hints = get_type_hints(table, include_extras=True)
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for field in fields(table):
        if field.name in names:
            about = next(each for each in get_args(hints[field.name]) if isinstance(each, Meta))
            extra = about.extra or {}
            allowed = extra.get("allowed") or describe_values(hints[field.name])
            default = extra.get("shown_default") or _default_of(field)
            cells = map(_escaped, (allowed, default, about.description or ""))
            yield f"| `{field.name}` | {' | '.join(cells)} |"


def _default_of(field: FieldInfo) -> str:
    if field.required:
        return "it is required"
    return "none" if field.default in (None, (), NODEFAULT) else format_default(field.default)


def _mcp_servers() -> Iterator[str]:
    yield "## MCP servers\n"
    yield "Each table `[[mcp_servers]]` is one MCP server. Only the settings file can hold them,"
    yield "because they can name a command to run. Their keys are"
    yield f"{', '.join(f'`{name}`' for name in McpServer.__struct_fields__)};"
    yield "see [MCP servers](../guides/tools.md#mcp-servers)."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
