"""The command line: `antiphon serve`, `doctor`, `keys`, `formats`, `change-seal-key` and `version`.

The options are derived from the fields of `Settings`. Heavy imports are deferred, so that help and
version respond immediately.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from antiphon.domain.access.limits import FULL_ACCESS, SCOPES, TIERS, KeyPolicy, format_duration
from antiphon.entrypoints import settings as s
from antiphon.entrypoints.commands.doctor.command import doctor
from antiphon.entrypoints.commands.explain.command import explain, replay
from antiphon.entrypoints.commands.options import (
    Command,
    CommandWithEngineOptions,
    add_config_option,
    add_settings_options,
    first_group,
    format_help,
    metavar,
    set_options,
)
from antiphon.entrypoints.process.exits import EXIT_INTERRUPTED, end, ending_with_a_sentence

if TYPE_CHECKING:
    from antiphon.entrypoints.commands.keys import PolicyOptions

EXAMPLES = """\
[bold]Examples[/]

  [dim]# scripted models: no GPU, no weights, no network[/]
  antiphon serve

  [dim]# a model from a folder, on vLLM, with your own name for it[/]
  antiphon serve ./models/Qwen3-8B --served-model-name qwen3

  [dim]# options for vLLM go after --[/]
  antiphon serve ./models/gpt-oss-20b -- --tensor-parallel-size 2

  [dim]# open to the network, for clients with an API key[/]
  antiphon keys create --name me
  antiphon serve --host 0.0.0.0 --port 8080

  [dim]# a settings file, and one setting as an environment variable[/]
  ANTIPHON_PORT=8080 antiphon serve --config antiphon.toml

[bold]Where settings come from[/]

`antiphon serve --help-all` lists all of them. Each option is also an
environment variable and a key in the settings file. Options override
variables, and variables override the file.

  [dim]# antiphon.toml[/]
  model = "./models/gpt-oss-20b"
  port = 8080
  served_model_name = \\["gpt-oss"]
  engine_options = \\["--max-model-len", "65536"]
  \\[scripted]
  tokens_per_s = 50

In a variable, separate the values of a list with spaces, and quote them as in a
shell:

  ANTIPHON_ENGINE_OPTIONS="--max-model-len 65536" antiphon serve ./models/gpt-oss-20b
"""


KEYS_EXAMPLES = """\
[bold]Examples[/]

  [dim]# create a key for the default tenant in the store; it is printed once[/]
  antiphon keys create --name laptop

  [dim]# two teams that cannot see each other's data[/]
  antiphon keys create --name ci --tenant search
  antiphon keys create --name ci --tenant billing

  [dim]# put the key into a variable: only the key goes to standard output[/]
  export OPENAI_API_KEY=$(antiphon keys create --name laptop)

  [dim]# create a key in a file, for a server with the memory store[/]
  antiphon keys create --name laptop --file keys.toml
  antiphon serve --store memory --auth on --keys-file keys.toml

  [dim]# limit a key, change that while servers run, and see what it used[/]
  antiphon keys create --name ci --limit requests/min=60 --limit tokens/day=1M
  antiphon keys update key_… --limit runs=4 --limit tokens/day=none
  antiphon keys usage

  [dim]# list the keys, and revoke one[/]
  antiphon keys list
  antiphon keys revoke key_…

Choose the store as for the server: with --store, --data-dir, --config, or the
same environment variables.
"""


FORMATS_EXAMPLES = """\
[bold]Examples[/]

  [dim]# which formats there are, and for which models[/]
  antiphon formats

  [dim]# what a model's format is, and whether its tool calls are read[/]
  antiphon formats check ./models/Qwen3-8B

  [dim]# a chat template alone, and another format than the one that is recognized[/]
  antiphon formats check chat_template.jinja --format chat:hermes
"""


HELP = click.RichHelpConfiguration(text_markup="rich")
SERVE_HELP = click.RichHelpConfiguration(
    text_markup="rich",
    show_arguments=True,
    options_table_column_types=["required", "opt_all", "metavar", "help"],
    option_groups={"antiphon serve": first_group()},
    footer_text=EXAMPLES,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.rich_config(help_config=HELP)
@click.version_option(package_name="antiphon", message="antiphon %(version)s")
def app() -> None:
    """A Responses API server for self-hosted models.

    [bold]antiphon serve[/] starts the server with scripted models, to try it out.
    [bold]antiphon serve MODEL[/] serves your own model on vLLM.
    [bold]antiphon serve --help[/] explains the settings that matter first, with examples.
    [bold]antiphon serve --help-all[/] explains every setting.
    [bold]antiphon doctor[/] checks this machine and the settings, and says what to do.
    [bold]antiphon keys --help[/] explains how to create API keys for others.
    [bold]antiphon formats check MODEL[/] shows whether the tool calls of a model are understood.
    """


@app.command(cls=CommandWithEngineOptions)
@click.rich_config(help_config=SERVE_HELP)
@click.argument("model", required=False, help=format_help(s.SETTINGS["model"]))
@add_settings_options
@add_config_option
@click.pass_context
def serve(ctx: click.RichContext, /, config: Path | None, **options: Any) -> int:
    """Serve the Responses API for MODEL, or for the scripted models if MODEL is omitted.

    Everything after [bold]--[/] is passed to vLLM unchanged.
    """
    file = s.find_file(config, os.environ)
    chosen = set_options(options, ctx.meta["engine_options"])
    settings = s.load(file, os.environ, chosen)
    if file is not None:
        click.echo(f"Reading settings from {file.absolute()}", err=True)
    names_none = not any(
        s.is_set(each, file, os.environ, chosen) for each in s.SINGLE_MODEL_SETTINGS
    )
    if names_none and not settings.models:
        from antiphon.entrypoints.wiring.small_model import with_small_model

        settings = with_small_model(settings)

    # Imported late: the server imports Litestar and the chosen adapters, which takes a second.
    # Help, version, and setting errors should not have to wait for it.
    if settings.workers > 1:
        from antiphon.entrypoints.workers.supervisor import supervise

        return supervise(settings)
    from antiphon.entrypoints.server.serve import run

    run(settings)
    return 0


@app.group()
@click.rich_config(
    help_config=click.RichHelpConfiguration(text_markup="rich", footer_text=KEYS_EXAMPLES)
)
def keys() -> None:
    """Create, limit, list, and revoke API keys.

    Each key belongs to a [bold]tenant[/]. Responses, conversations, and files belong to one tenant
    and are invisible to all others. A server requires keys if other machines can reach it
    (see [bold]--auth[/] in [bold]antiphon serve --help[/]).
    """


def _store_options(*paths: str) -> Callable[[Command], Command]:
    """Add the options for these settings, which select the store, and `--config`."""

    def add(command: Command) -> Command:
        command = add_config_option(command)
        for path in reversed(paths):
            setting = s.SETTINGS[path]
            command = click.option(
                setting.option,
                path,
                metavar=metavar(setting),
                multiple=setting.is_list,
                help=format_help(setting),
            )(command)
        return command

    return add


def _load_settings(config: Path | None, **options: str | None) -> s.Settings:
    return s.load(s.find_file(config, os.environ), os.environ, set_options(options, None))


LIMIT_HELP = (
    "At most so much: NAME=AMOUNT, like requests/min=60, tokens/day=1M or runs=4. NAME is "
    "requests, tokens, input_tokens or output_tokens, by min or day of UTC; or runs, at a time. "
    "k, M and G are thousands, millions and billions; none removes the limit. Repeat the option "
    "for several limits."
)


def _policy_options(command: Command) -> Command:
    """Add the options for what a key may do."""
    for decorator in reversed(
        (
            click.option("--limit", "limits", metavar="LIMIT", multiple=True, help=LIMIT_HELP),
            click.option(
                "--model",
                "models",
                metavar="NAME",
                multiple=True,
                help="Allow only this model; for the key, there is no other. Repeat the option to "
                "allow several, or all.",
            ),
            click.option(
                "--tool",
                "tools",
                metavar="TYPE",
                multiple=True,
                help="Allow only tools of this type: function, mcp, web_search, code_interpreter "
                "and so on. Repeat the option to allow several, or all.",
            ),
            click.option(
                "--host",
                "hosts",
                metavar="HOST",
                multiple=True,
                help="Allow requests to name only URLs of this host and its subdomains: images, "
                "files and MCP servers. Repeat the option to allow several, or all.",
            ),
            click.option(
                "--guard",
                "guards",
                metavar="NAME",
                multiple=True,
                help="Ask only this guard about requests with the key, and about what follows. "
                "Repeat the option for several; none asks no guard, and all asks all.",
            ),
            click.option(
                "--scope",
                "scopes",
                type=click.Choice(["read", "write", "metrics", "all"]),
                multiple=True,
                help="Allow only to read (GET), to write (everything else), or to read /metrics, "
                "which tells of all tenants. Repeat it to allow several; all is read and write.",
            ),
            click.option(
                "--tier",
                "service_tier",
                type=click.Choice(TIERS),
                help="The highest service tier that requests with the key get. Without this "
                "option, it is default.",
            ),
            click.option(
                "--expires",
                metavar="TIME",
                help="Refuse the key after this time from now, like 12h or 30d, or never.",
            ),
        )
    ):
        command = decorator(command)
    return command


def _split_policy(options: dict[str, Any]) -> PolicyOptions:
    """Remove the options for what a key may do, and return them."""
    from antiphon.entrypoints.commands.keys import PolicyOptions

    names = PolicyOptions.__struct_fields__
    return PolicyOptions(**{name: options.pop(name) for name in names})


def _describe(policy: KeyPolicy) -> str:
    """Return what a key may do, in one line; "" for full access."""
    parts = [f"{name}={limit}" for name, limit in policy.limits.items()]
    lists = {
        "model": policy.models,
        "tool": policy.tools,
        "host": policy.hosts,
        "guard": policy.guards,
    }
    for name, values in lists.items():
        parts += [f"{name}={value}" for value in values]
    if set(policy.scopes) != set(SCOPES):
        parts += [f"scope={scope}" for scope in policy.scopes]
    if policy.service_tier != FULL_ACCESS.service_tier:
        parts.append(f"tier={policy.service_tier}")
    if policy.expires_at is not None:
        expires = datetime.fromtimestamp(policy.expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        parts.append(f"expires={expires}")
    return " ".join(parts)


@keys.command("create")
@click.option("--name", required=True, help="A name to recognize the key by.")
@click.option("--tenant", default="default", show_default=True, help="The tenant of the key.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Add the key to this file instead of the store. It is created if it is missing.",
)
@_policy_options
@_store_options("store", "data_dir")
def create_key(
    name: str, tenant: str, file: Path | None, config: Path | None, **options: Any
) -> None:
    """Create a key and print it once. Only its hash is stored.

    Without further options, the key may do everything that the server offers, without limits.
    """
    from antiphon.entrypoints.commands.keys import create  # imported late: it imports the stores

    policy = _split_policy(options)
    key, api_key = create(_load_settings(config, **options), name, tenant, file, policy)
    click.echo(key)
    click.echo(f"{api_key.id} is a key of the tenant {tenant}. It is not shown again.", err=True)


@keys.command("update")
@click.argument("key_id", metavar="ID")
@_policy_options
@_store_options("store", "data_dir", "keys_file")
def update_key(key_id: str, config: Path | None, **options: Any) -> None:
    """Change what the key ID may do. All servers know it within five seconds.

    What no option names stays as it is. `--limit NAME=none`, `--model all` and `--expires never`
    remove a limit.
    """
    from antiphon.entrypoints.commands.keys import update

    changes = _split_policy(options)
    policy = update(_load_settings(config, **options), key_id, changes)
    click.echo(f"{key_id}: {_describe(policy) or 'full access'}", err=True)


@keys.command("usage")
@click.option("--key", "key_id", metavar="ID", help="Show only this key.")
@_store_options("store", "data_dir", "keys_file", "default_limit")
def show_usage(key_id: str | None, config: Path | None, **options: Any) -> None:
    """Show what each key with limits has used of them, in this minute and this day (UTC)."""
    from antiphon.entrypoints.commands.keys import collect_usage

    rows = [("KEY", "NAME", "LIMIT", "USED", "OF", "RESETS IN")]
    for used in collect_usage(_load_settings(config, **options), key_id):
        state = used.state
        resets = "" if state.quantity == "runs" else format_duration(round(state.reset_s))
        counts = (f"{state.used:,}", f"{state.limit:,}")
        rows.append((used.key.id, used.key.name, state.name, *counts, resets))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if place in (3, 4) else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo("  ".join(cells).rstrip())


@keys.command("list")
@_store_options("store", "data_dir", "keys_file")
def list_keys(config: Path | None, **options: str | None) -> None:
    """List the keys by id, tenant, name, creation date, location, and what they may do.

    The secrets are not shown.
    """
    from antiphon.entrypoints.commands.keys import collect_keys

    for key, location in collect_keys(_load_settings(config, **options)):
        created = datetime.fromtimestamp(key.created_at, UTC).strftime("%Y-%m-%d")
        row = [key.id, key.tenant, key.name, created, location, _describe(key.policy)]
        click.echo("\t".join(row).rstrip("\t"))


@keys.command("revoke")
@click.argument("key_id", metavar="ID")
@_store_options("store", "data_dir", "keys_file")
def revoke_key(key_id: str, config: Path | None, **options: str | None) -> None:
    """Revoke the key ID. All servers refuse it within five seconds."""
    from antiphon.entrypoints.commands.keys import revoke

    revoke(_load_settings(config, **options), key_id)
    click.echo(f"{key_id} is revoked.", err=True)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@app.group(invoke_without_command=True)
@click.rich_config(
    help_config=click.RichHelpConfiguration(text_markup="rich", footer_text=FORMATS_EXAMPLES)
)
@_json_option
@click.pass_context
def formats(ctx: click.RichContext, /, *, as_json: bool) -> None:
    """List the formats that models write in, and the models of each; check the format of a model.

    The names are for [bold]--format[/] of [bold]antiphon serve[/], which recognizes the format by
    itself.
    """
    if ctx.invoked_subcommand is None:
        from antiphon.entrypoints.commands.formats import (
            list_formats,  # imported late: it loads the formats
        )

        list_formats(as_json=as_json)


@formats.command("check")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "name",
    default="auto",
    help="Check this format, not the one that is recognized: as for antiphon serve.",
)
@click.option(
    "--chat-template",
    "template_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use the chat template in this file instead of the model's own.",
)
@_json_option
def check_format(model: Path, name: str, template_file: Path | None, *, as_json: bool) -> int:
    """Show what is recognized about MODEL, a folder or a chat template, and why.

    It renders a conversation with a tool, writes a call as the model does, and reads it back. The
    exit code is 0 if the call is written and read back, 1 if not, and 2 if MODEL cannot be read.
    """
    from antiphon.entrypoints.commands.formats import check

    return check(model, name, template_file, as_json=as_json)


@app.command("change-seal-key")
@_store_options("store", "data_dir", "seal_key_file")
def change_seal_key(config: Path | None, **options: str | None) -> None:
    """Make this seal key the only one that the store accepts.

    Stop all of the store's servers first. Data sealed with the old key is lost: responses that wait
    in the store fail, encrypted reasoning is left out, and compactions are refused. If the key file
    is missing, it is created.
    """
    from antiphon.entrypoints.server.seal_key import change  # imported late: it imports the stores

    settings = _load_settings(config, **options)
    change(settings)
    click.echo(f"{settings.seal_key_path} is the seal key of {settings.shown_store}.", err=True)


app.add_command(doctor)
app.add_command(explain)
app.add_command(replay)


@app.command()
def version() -> None:
    """Print the versions of the server, Python, and the main packages."""
    click.echo(f"antiphon {metadata.version('antiphon')}")
    click.echo(f"python {platform.python_version()}")
    for package in ("litestar", "msgspec", "uvicorn", "oss-harmony", "vllm"):
        click.echo(f"{package} {_version_of(package)}")


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def main() -> None:
    """Run the command line. A usage error is printed as one sentence, with exit code 2."""
    try:
        with ending_with_a_sentence():
            sys.exit(app.main(standalone_mode=False) or 0)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "antiphon"
        end(f"{error.format_message()} See `{command} --help`.")
    except click.ClickException as error:
        end(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        sys.exit(EXIT_INTERRUPTED)


# vLLM spawns processes that import this module.
if __name__ == "__main__":
    main()
