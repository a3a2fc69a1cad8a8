"""The command line: `antiphon serve`, `keys`, `change-seal-key` and `version`.

Its options are made from the fields of `Settings`. Nothing heavy is imported before it is needed:
help and version answer at once.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
from rich.markup import escape
from rich_click.utils import OptionGroupDict

from antiphon.domain.errors import SettingsError, StoreError
from antiphon.entrypoints import settings as s

EXIT_WRONG_USE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells expect it

EXAMPLES = """\
[bold]Examples[/]

  [dim]# scripted models: no GPU, no weights, no network[/]
  antiphon serve

  [dim]# a model from a folder, on vLLM, under a name of your own[/]
  antiphon serve ./models/Qwen3-8B --served-model-name qwen3

  [dim]# options for vLLM itself stand after --[/]
  antiphon serve ./models/gpt-oss-20b -- --tensor-parallel-size 2

  [dim]# open to the network, for those who have a key[/]
  antiphon keys create --name me
  antiphon serve --host 0.0.0.0 --port 8080

  [dim]# a settings file, and one setting from the environment[/]
  ANTIPHON_PORT=8080 antiphon serve --config antiphon.toml

[bold]Where settings come from[/]

Each option is also a key of the settings file and a variable. The command line
wins over the variable, the variable over the file, the file over the default.

  [dim]# antiphon.toml[/]
  model = "./models/gpt-oss-20b"
  port = 8080
  served_model_name = \\["gpt-oss"]
  engine_options = \\["--max-model-len", "65536"]
  \\[scripted]
  tokens_per_s = 50

A list in a variable is separated by spaces and quoted as in a shell:

  ANTIPHON_ENGINE_OPTIONS="--max-model-len 65536" antiphon serve ./models/gpt-oss-20b
"""


KEYS_EXAMPLES = """\
[bold]Examples[/]

  [dim]# a key of the default tenant, in the store; it is printed once[/]
  antiphon keys create --name laptop

  [dim]# two teams that see nothing of each other[/]
  antiphon keys create --name ci --tenant search
  antiphon keys create --name ci --tenant billing

  [dim]# straight into a variable: the key alone goes to standard output[/]
  export OPENAI_API_KEY=$(antiphon keys create --name laptop)

  [dim]# in a file, for a server that keeps nothing[/]
  antiphon keys create --name laptop --file keys.toml
  antiphon serve --store memory --auth on --keys-file keys.toml

  [dim]# who has one; and no longer[/]
  antiphon keys list
  antiphon keys revoke key_…

Name the store as you do for the server: by --store, --data-dir, --config,
or the same variables.
"""


def _option_groups() -> list[OptionGroupDict]:
    groups: dict[str, list[str]] = {}
    for setting in s.SETTINGS.values():
        name = "model" if setting.path == "model" else setting.option
        groups.setdefault(setting.group, []).append(name)
    groups["Other"] = ["--config", "--help"]
    return [{"name": name, "options": options} for name, options in groups.items()]


HELP = click.RichHelpConfiguration(text_markup="rich")
SERVE_HELP = click.RichHelpConfiguration(
    text_markup="rich",
    show_arguments=True,
    options_table_column_types=["required", "opt_all", "metavar", "help"],
    option_groups={"antiphon serve": _option_groups()},
    footer_text=EXAMPLES,
)


def _explained(setting: s.Setting) -> str:
    sources = escape(f"[default: {setting.default}; {setting.variable}]")
    return f"{escape(setting.text)} [dim]{sources}[/]"


def _metavar(setting: s.Setting) -> str:
    """Say what kind of value an option takes, in the words of its help."""
    if setting.choices:
        return "|".join(setting.choices)
    return "NUMBER" if "number" in setting.allowed else "TEXT"


Command = TypeVar("Command", bound=Callable[..., Any])


def _config_option(command: Command) -> Command:
    default = escape(
        f"[default: {s.DEFAULT_FILE} in this folder, if it exists; {s.CONFIG_VARIABLE}]"
    )
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        help=f"The settings file. [dim]{default}[/]",
    )(command)


def _one_option_a_setting(command: Command) -> Command:
    # Values stay text and no default is given: settings.py converts them, and it must see what was
    # left out. Click reads no variable either, since an error has to name the source it came from.
    for path, setting in reversed(list(s.SETTINGS.items())):
        name = path.replace(".", "__")
        if path in ("model", "engine_options"):  # these two have places of their own
            continue
        if setting.is_flag:
            flags = f"{setting.option}/--no-{setting.option.removeprefix('--')}"
            option = click.option(flags, name, default=None, help=_explained(setting))
        else:
            option = click.option(
                setting.option,
                name,
                metavar=_metavar(setting),
                multiple=setting.is_list,
                help=_explained(setting),
            )
        command = option(command)
    return command


class CommandWithEngineOptions(click.RichCommand):
    """Keeps what follows `--` apart from MODEL, so that it may be there without one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, separator, theirs = _split(args)
        ctx.meta["engine_options"] = tuple(theirs) if separator else None
        return super().parse_args(ctx, ours)


def _split(args: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in args:
        return args, False, []
    at = args.index("--")
    return args[:at], True, args[at + 1 :]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.rich_config(help_config=HELP)
@click.version_option(package_name="antiphon", message="antiphon %(version)s")
def app() -> None:
    """A Responses API server for models that you run yourself.

    [bold]antiphon serve[/] starts it with scripted models, to try things out;
    [bold]antiphon serve MODEL[/] with a model of yours, on vLLM.
    [bold]antiphon serve --help[/] explains every setting, with examples;
    [bold]antiphon keys --help[/] says how to let others in.
    """


@app.command(cls=CommandWithEngineOptions)
@click.rich_config(help_config=SERVE_HELP)
@click.argument("model", required=False, help=_explained(s.SETTINGS["model"]))
@_one_option_a_setting
@_config_option
@click.pass_context
def serve(ctx: click.RichContext, /, config: Path | None, **options: Any) -> None:
    """Serve the Responses API for MODEL, or for the scripted models without one.

    What follows [bold]--[/] is handed to vLLM as it is.
    """
    file = s.find_file(config, os.environ)
    loaded = s.load(file, os.environ, _given(options, ctx.meta["engine_options"]))
    if file is not None:
        click.echo(f"Settings are read from {file.absolute()}", err=True)

    # Here and not above: the server imports Litestar and the chosen adapters, which takes a second
    # that help, version and a wrong setting should not have to wait for.
    from antiphon.entrypoints.server import run

    run(loaded)


def _given(options: Mapping[str, Any], engine_options: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the settings that the command line names, by their paths."""
    named = {**options, "engine_options": engine_options}
    # An option that may be repeated is an empty tuple when it is absent.
    return {name.replace("__", "."): v for name, v in named.items() if v is not None and v != ()}


@app.group()
@click.rich_config(
    help_config=click.RichHelpConfiguration(text_markup="rich", footer_text=KEYS_EXAMPLES)
)
def keys() -> None:
    """Make, list and revoke API keys.

    A key names a [bold]tenant[/]: responses, conversations and files belong to one, and are unknown
    to every other. A server asks for keys when others than this machine can reach it
    ([bold]--auth[/] of [bold]antiphon serve[/] says when).
    """


def _settings_options(*paths: str) -> Callable[[Command], Command]:
    """Add the options that say which store a server with these settings has."""

    def add(command: Command) -> Command:
        command = _config_option(command)
        for path in reversed(paths):
            setting = s.SETTINGS[path]
            command = click.option(
                setting.option, path, metavar=_metavar(setting), help=_explained(setting)
            )(command)
        return command

    return add


def _settings_from(config: Path | None, **options: str | None) -> s.Settings:
    return s.load(s.find_file(config, os.environ), os.environ, _given(options, None))


@keys.command("create")
@click.option("--name", required=True, help="What people know the key by.")
@click.option("--tenant", default="default", show_default=True, help="Whose objects the key opens.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A keys file to add it to, instead of the store; it is made when it is missing.",
)
@_settings_options("store", "data_dir")
def create_key(
    name: str, tenant: str, file: Path | None, config: Path | None, **options: str | None
) -> None:
    """Make a key and print it, once: only its hash is kept."""
    from antiphon.entrypoints.keys import create  # like the server, it imports the stores

    key, kept = create(_settings_from(config, **options), name, tenant, file)
    click.echo(key)
    click.echo(f"{kept.id} is a key of the tenant {tenant}. It is not shown again.", err=True)


@keys.command("list")
@_settings_options("store", "data_dir", "keys_file")
def list_keys(config: Path | None, **options: str | None) -> None:
    """List the keys, but not what they are: their ids, tenants, names, ages and places."""
    from antiphon.entrypoints.keys import collect_keys

    for key, where in collect_keys(_settings_from(config, **options)):
        made = datetime.fromtimestamp(key.created_at, UTC).strftime("%Y-%m-%d")
        click.echo(f"{key.id}\t{key.tenant}\t{key.name}\t{made}\t{where}")


@keys.command("revoke")
@click.argument("key_id", metavar="ID")
@_settings_options("store", "data_dir", "keys_file")
def revoke_key(key_id: str, config: Path | None, **options: str | None) -> None:
    """Forget the key ID: within five seconds, no server takes it any more."""
    from antiphon.entrypoints.keys import revoke

    revoke(_settings_from(config, **options), key_id)
    click.echo(f"{key_id} is revoked.", err=True)


@app.command("change-seal-key")
@_settings_options("store", "data_dir", "seal_key_file")
def change_seal_key(config: Path | None, **options: str | None) -> None:
    """Let servers with this seal key have the store, and no others.

    Stop those that run first. What was sealed with the key before is lost: responses that wait in
    the store fail, sealed reasoning is left out, compactions are refused. A key file that is
    missing is made.
    """
    from antiphon.entrypoints.seal_key import change  # like the server, it imports the stores

    settings = _settings_from(config, **options)
    change(settings)
    click.echo(f"{settings.seal_key_path} is the seal key of {settings.shown_store}.", err=True)


@app.command()
def version() -> None:
    """Print the versions of the server and of what it runs on."""
    click.echo(f"antiphon {metadata.version('antiphon')}")
    click.echo(f"python {platform.python_version()}")
    for package in ("litestar", "msgspec", "uvicorn", "oss-harmony", "vllm"):
        click.echo(f"{package} {_installed(package)}")


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def main() -> None:
    """Run the command line; what goes wrong by its use is one sentence and exit code 2."""
    try:
        sys.exit(app.main(standalone_mode=False) or 0)
    except (SettingsError, StoreError) as error:
        _fail(str(error))
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "antiphon"
        _fail(f"{error.format_message()} See `{command} --help`.")
    except click.ClickException as error:
        _fail(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        sys.exit(EXIT_INTERRUPTED)


def _fail(sentence: str) -> None:
    click.echo(f"antiphon: {sentence}", err=True)
    sys.exit(EXIT_WRONG_USE)


# vLLM spawns processes that import this module again.
if __name__ == "__main__":
    main()
