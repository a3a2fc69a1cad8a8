"""Write docs/reference/settings.md from the settings' schema: `make docs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from antiphon.entrypoints.settings import SETTINGS, McpServer, Setting

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


def page() -> str:
    """Return the whole page."""
    by_group = groupby(SETTINGS.values(), key=attrgetter("group"))
    parts = [INTRO]
    for group, settings in by_group:
        parts.append(f"## {group}\n")
        parts.append("\n".join(_table(settings)) + "\n")
    return "\n".join([*parts, "\n".join(_mcp_servers())]) + "\n"


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


def _mcp_servers() -> Iterator[str]:
    yield "## MCP servers\n"
    yield "Each table `[[mcp_servers]]` is one MCP server. Only the settings file can hold them,"
    yield "because they can name a command to run. Their keys are"
    yield f"{', '.join(f'`{name}`' for name in McpServer.__struct_fields__)};"
    yield "see [MCP servers](../guides/tools.md#mcp-servers)."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
