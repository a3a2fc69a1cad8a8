"""The commands `antiphon explain` and `antiphon replay`. They import their work late."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from antiphon.domain.errors import NotFound, RequestError
from antiphon.entrypoints import settings as s
from antiphon.entrypoints.commands.options import add_config_option, format_help, set_options

EXIT_UNKNOWN = 1
EXIT_DIFFERENT = 1

EXPLAIN_EXAMPLES = """\
[bold]Examples[/]

  [dim]# why a response ended, and what took how long[/]
  antiphon explain resp_… --url http://localhost:8000/v1

  [dim]# the whole bundle, to send to somebody or to replay[/]
  antiphon explain resp_… --url http://localhost:8000/v1 --output bundle.json

  [dim]# without a server, from its store[/]
  antiphon explain resp_… --data-dir /var/lib/antiphon
"""

REPLAY_EXAMPLES = """\
[bold]Examples[/]

  [dim]# whether this version reads what the model wrote as that server did[/]
  antiphon replay bundle.json

  [dim]# a message that makes a scripted model write the same[/]
  antiphon replay bundle.json --script
"""

Command = TypeVar("Command", bound=Callable[..., Any])


def _add_store_options(command: Command) -> Command:
    command = add_config_option(command)
    for path in reversed(("store", "data_dir", "seal_key_file")):
        setting = s.SETTINGS[path]
        command = click.option(
            setting.option, path, metavar="TEXT", default=None, help=format_help(setting)
        )(command)
    return command


@click.command()
@click.rich_config(
    help_config=click.RichHelpConfiguration(text_markup="rich", footer_text=EXPLAIN_EXAMPLES)
)
@click.argument("response_id", metavar="RESPONSE")
@click.option("--url", metavar="TEXT", help="The server to ask; its base URL ends with /v1.")
@click.option(
    "--key",
    metavar="TEXT",
    envvar="OPENAI_API_KEY",
    help="Your API key for --url. [dim]OPENAI_API_KEY[/]",
)
@click.option(
    "--tenant",
    metavar="TEXT",
    default="default",
    help="Whose response it is, if it is read from the store.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the bundle to this file.",
)
@_add_store_options
def explain(
    response_id: str,
    *,
    url: str | None,
    key: str | None,
    tenant: str,
    output: Path | None,
    config: Path | None,
    **options: str | None,
) -> int:
    """Explain RESPONSE: why it ended, its times, turns and calls, and what was ignored or repaired.

    Ask a server with [bold]--url[/], or read the store with the settings of its server. The exit
    code is 0 if the response is explained, 1 if there is no such response, and 2 otherwise.
    """
    from antiphon.entrypoints.commands.explain.sources import bundle_from_server, bundle_from_store
    from antiphon.entrypoints.commands.explain.summary import print_summary

    try:
        if url is not None:
            bundle = bundle_from_server(url, key, response_id)
        else:
            file = s.find_file(config, os.environ)
            settings = s.load(file, os.environ, set_options(options, None))
            bundle = bundle_from_store(settings, tenant, response_id)
    except NotFound as error:
        click.echo(f"antiphon: {error.message}", err=True)
        return EXIT_UNKNOWN
    if output is not None:
        _write(output, bundle)
    print_summary(bundle)
    return 0


@click.command()
@click.rich_config(
    help_config=click.RichHelpConfiguration(text_markup="rich", footer_text=REPLAY_EXAMPLES)
)
@click.argument("bundle", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--script",
    "as_script",
    is_flag=True,
    help="Print a message that makes a scripted model write what the model wrote.",
)
def replay(bundle: Path, *, as_script: bool) -> int:
    """Play a BUNDLE of `antiphon explain` through this version, and show what differs.

    The model's output is read again, step by step; tools answer as they answered. Nothing is sent
    anywhere. The exit code is 0 if nothing differs, 1 if something does, and 2 if the bundle cannot
    be replayed.
    """
    from antiphon.domain.responses.traces import read_bundle
    from antiphon.entrypoints.commands import replay as work
    from antiphon.entrypoints.commands.explain.summary import print_replay
    from antiphon.entrypoints.commands.terminal import printable_json

    try:
        document = read_bundle(bundle.read_bytes())
        if as_script:
            click.echo(printable_json(work.script_of(document)))
            return 0
        replayed = work.replay(document)
    except RequestError as error:
        raise click.ClickException(error.message) from None
    except OSError as error:
        raise click.ClickException(f"{bundle} cannot be read: {error.strerror}.") from None
    print_replay(replayed)
    return EXIT_DIFFERENT if replayed.differences else 0


def _write(file: Path, bundle: bytes) -> None:
    try:
        # It holds prompts: nobody else may read it.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as out:
            out.write(bundle)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}.") from None
