"""The command `antiphon doctor`. It imports the checks only when it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import rich_click as click

from antiphon.entrypoints import settings as s
from antiphon.entrypoints.commands.options import (
    CommandWithEngineOptions,
    add_config_option,
    add_settings_options,
    first_group,
    format_help,
    set_options,
)

EXAMPLES = """\
[bold]Examples[/]

  [dim]# check a server with the settings that it will have[/]
  antiphon doctor --config antiphon.toml

  [dim]# without the model, which may take minutes to start[/]
  antiphon doctor ./models/Qwen3-8B --quick

  [dim]# for scripts: exit code 1 for warnings, too[/]
  antiphon doctor --json --fail-on-warnings
"""
_GROUPS = first_group()
_GROUPS[0]["options"] = [*_GROUPS[0]["options"], "--quick", "--fail-on-warnings", "--json"]
DOCTOR_HELP = click.RichHelpConfiguration(
    text_markup="rich",
    show_arguments=True,
    options_table_column_types=["required", "opt_all", "metavar", "help"],
    option_groups={"antiphon doctor": _GROUPS},
    footer_text=EXAMPLES,
)


@click.command(cls=CommandWithEngineOptions)
@click.rich_config(help_config=DOCTOR_HELP)
@click.argument("model", required=False, help=format_help(s.SETTINGS["model"]))
@click.option("--quick", is_flag=True, help="Leave out what starts or calls a model.")
@click.option("--fail-on-warnings", is_flag=True, help="Exit with code 1 for warnings, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
@add_settings_options
@add_config_option
@click.pass_context
def doctor(
    ctx: click.RichContext,
    /,
    config: Path | None,
    *,
    quick: bool,
    fail_on_warnings: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Check this machine and the settings of a server, and say what to do.

    It takes the settings of [bold]antiphon serve[/] and changes nothing. The exit code is 0 if a
    server can run, 1 if there is a problem, and 2 if the settings are invalid.
    """
    file = s.find_file(config, os.environ)
    chosen = set_options(options, ctx.meta["engine_options"])
    settings = s.load(file, os.environ, chosen)

    # Imported late, like the server: the checks import its adapters.
    from antiphon.entrypoints.commands.doctor.findings import Installation
    from antiphon.entrypoints.commands.doctor.run import examine

    installation = Installation(
        settings=settings,
        file=file,
        variables=sorted(name for name in os.environ if name.startswith("ANTIPHON_")),
        options=sorted(chosen),
        quick=quick,
    )
    exit_code = examine(installation, as_json=as_json, fail_on_warnings=fail_on_warnings)
    sys.stdout.flush()
    # A check that hangs may have left a thread for which a normal exit would wait.
    os._exit(exit_code)
