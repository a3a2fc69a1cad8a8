"""The options of commands that take the settings, derived from the fields of `Settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from rich.markup import escape
from rich_click.utils import OptionGroupDict

from antiphon.entrypoints import settings as s

FIRST = ("model", "engine", "served_model_name", "host", "port", "auth", "store", "data_dir")
"""The settings that most servers need: `--help` shows them alone."""


def first_group() -> list[OptionGroupDict]:
    """Return the group of the settings that most servers need."""
    return option_groups()[:1]


def option_groups() -> list[OptionGroupDict]:
    """Return the groups in which help shows the settings: first those that most servers need."""
    names = {
        path: "model" if path == "model" else setting.option for path, setting in s.SETTINGS.items()
    }
    groups = {"Start here": [*(names[path] for path in FIRST), "--config", "--help", "--help-all"]}
    for path, setting in s.SETTINGS.items():
        if path not in FIRST:
            groups.setdefault(setting.group, []).append(names[path])
    return [{"name": name, "options": options} for name, options in groups.items()]


def format_help(setting: s.Setting) -> str:
    """Return the explanation of a setting, with its default and its variable."""
    sources = escape(f"[default: {setting.default}; {setting.variable}]")
    return f"{escape(setting.text)} [dim]{sources}[/]"


def metavar(setting: s.Setting) -> str:
    """Return the kind of value that an option takes, for its help."""
    if setting.choices:
        return "|".join(setting.choices)
    return "NUMBER" if "number" in setting.allowed else "TEXT"


Command = TypeVar("Command", bound=Callable[..., Any])


def add_config_option(command: Command) -> Command:
    """Add `--config`."""
    default = escape(
        f"[default: {s.DEFAULT_FILE} in this folder, if it exists; {s.CONFIG_VARIABLE}]"
    )
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        help=f"The settings file. [dim]{default}[/]",
    )(command)


def add_settings_options(command: Command) -> Command:
    """Add an option for each setting, but for those that are arguments, and `--help-all`."""
    # Values stay text and have no default: settings/sources.py converts them, and it must see which
    # ones are missing. Click reads no variables, since an error has to name the value's source.
    for path, setting in reversed(list(s.SETTINGS.items())):
        name = path.replace(".", "__")
        if path in ("model", "engine_options"):  # these two are arguments
            continue
        is_hidden = path not in FIRST
        if setting.is_flag:
            flags = f"{setting.option}/--no-{setting.option.removeprefix('--')}"
            option = click.option(
                flags, name, default=None, hidden=is_hidden, help=format_help(setting)
            )
        else:
            option = click.option(
                setting.option,
                name,
                metavar=metavar(setting),
                multiple=setting.is_list,
                hidden=is_hidden,
                help=format_help(setting),
            )
        command = option(command)
    return click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help=f"Show this message with all {len(s.SETTINGS)} settings, and exit.",
    )(command)


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value:
        return
    assert isinstance(ctx, click.RichContext)
    for parameter in ctx.command.params:
        if isinstance(parameter, click.Option):
            parameter.hidden = False
    [[command, first]] = ctx.help_config.option_groups.items()
    ctx.help_config.option_groups = {command: [*first, *option_groups()[1:]]}
    click.echo(ctx.get_help(), color=ctx.color)
    ctx.exit()


class CommandWithEngineOptions(click.RichCommand):
    """A command that separates the engine options after `--` from MODEL, which may be missing."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own_args, engine_options = _split_at_separator(args)
        ctx.meta["engine_options"] = engine_options
        return super().parse_args(ctx, own_args)


def _split_at_separator(args: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    if "--" not in args:
        return args, None
    separator = args.index("--")
    return args[:separator], tuple(args[separator + 1 :])


def set_options(
    options: Mapping[str, Any], engine_options: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the settings that the command line sets, by path."""
    all_options = {**options, "engine_options": engine_options}
    # An absent option is None, or an empty tuple if it can be repeated.
    return {
        name.replace("__", "."): value
        for name, value in all_options.items()
        if value is not None and value != ()
    }
