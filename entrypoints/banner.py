"""What a person sees while the server starts, and when it is ready; plain lines in a log file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import metadata
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from antiphon.entrypoints.first_request import curl_line, python_lines
from antiphon.entrypoints.http import openapi
from antiphon.entrypoints.settings import Settings

REMINDER_S = 15.0
_WILDCARDS = ("0.0.0.0", "::", "")  # listened on, but no address to connect to


def url_of(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server that listens on `host`.

    >>> url_of("0.0.0.0", 8000), url_of("::1", 80)
    ('http://127.0.0.1:8000', 'http://[::1]:80')
    """
    host = "127.0.0.1" if host in _WILDCARDS else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def ready(
    settings: Settings,
    *,
    models: Sequence[str],
    url: str,
    engine: str,
    format: str,
    store: str,
    durability: str | None = None,
    containers: str | None = None,
    first_key_command: str | None = None,
    console: Console | None = None,
) -> None:
    """Say what is served and how to reach it; `url` is where this machine finds the server.

    `first_key_command` makes the key without which nobody is let in yet.
    """
    console = console or Console(stderr=True)
    where = (
        store if settings.sqlite_file is None else f"{store} ({settings.sqlite_file.absolute()})"
    )
    if durability is not None:
        where = f"{where}: {durability}"
    facts = {
        "models": ", ".join(models),
        "engine": engine,
        "format": format,
        "store": where,
        **({"containers": f"limits by {containers}"} if containers else {}),
        "api keys": _keys(settings, first_key_command),
        "url": f"{url}/v1",
        "openapi": url + openapi.PATH,
    }
    show = _for_people if console.is_terminal else _for_logs
    keyed = settings.needs_keys
    show(
        console,
        facts,
        curl_line(url, models[0], keyed=keyed),
        python_lines(url, models[0], keyed=keyed),
    )


def stopping(
    *, running: int, answering: int, limit_s: float, drain_delay_s: float, is_repeated: bool
) -> str | None:
    """Return what a server says that is told to stop; None where it waits for nothing.

    >>> stopping(running=1, answering=1, limit_s=25, drain_delay_s=0, is_repeated=False)
    'Stopping: waiting up to 25 s for 1 running response. Press Ctrl-C again to end it now.'
    """
    if running:
        waits_for, it = _counted(running, "running response"), "it" if running == 1 else "them"
    elif answering:
        waits_for, it = _counted(answering, "open request"), "it" if answering == 1 else "them"
    elif drain_delay_s and not is_repeated:
        return f"Stopping in {drain_delay_s:g} s. Press Ctrl-C again to stop now."
    else:
        return None
    if is_repeated:
        return f"Stopping now: ending {waits_for}."
    return (
        f"Stopping: waiting up to {max(limit_s, drain_delay_s):g} s for {waits_for}. "
        f"Press Ctrl-C again to end {it} now."
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def say(sentence: str) -> None:
    """Print one line where the banner stands."""
    _verbatim(Console(stderr=True), sentence)


def _keys(settings: Settings, first_key_command: str | None) -> str:
    if first_key_command is not None:
        return f"NONE YET, so every request is refused; make one with `{first_key_command}`"
    return "needed" if settings.needs_keys else "not asked for"


def _for_people(console: Console, facts: dict[str, str], curl: str, python: Sequence[str]) -> None:
    console.print(f"\n [bold green]●[/] [bold]antiphon[/] {_version()} is ready\n", highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        style = "bold cyan" if name in ("url", "openapi") else "bold"
        style = "bold yellow" if value.startswith("NONE") else style
        table.add_row(f"   [dim]{name}[/]", f"[{style}]{escape(value)}[/]")
    console.print(table)
    # No frame and no wrapping around what is to be copied.
    console.print("\n   [dim]try it from a shell[/]")
    _verbatim(console, curl)
    console.print("\n   [dim]or from Python[/]")
    _verbatim(console, *python)
    console.print()


def _for_logs(console: Console, facts: dict[str, str], curl: str, python: Sequence[str]) -> None:
    served = "; ".join(f"{name}: {value}" for name, value in facts.items())
    _verbatim(console, f"antiphon {_version()} is ready; {served}", f"try: {curl}")
    _verbatim(console, "or in Python: " + "; ".join(python))


def _verbatim(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _version() -> str:
    return metadata.version("antiphon")


class starting:  # noqa: N801 - read as a statement: `with starting("loading the model"):`
    """Show that something long goes on: a spinner with the time, or a line now and then in a log.

    Both `with` and `async with`. A thread of its own moves it, since loading blocks the event loop.
    """

    def __init__(
        self,
        what: str,
        *,
        console: Console | None = None,
        reminder_s: float = REMINDER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._console = console or Console(stderr=True)
        self._reminder_s = reminder_s
        self._clock = clock
        self._over = threading.Event()
        self._shown = ExitStack()

    def __enter__(self) -> starting:
        self._since = self._clock()
        if self._console.is_terminal:
            self._spin()
        else:
            self._remind()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._shown.close()
        outcome = "done" if kind is None else "failed"
        _verbatim(self._console, f"{self._what}: {outcome} after {self._elapsed()}")

    async def __aenter__(self) -> starting:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _spin(self) -> None:
        text = TextColumn("{task.description} [dim]{task.elapsed:.0f} s[/]")
        progress = Progress(SpinnerColumn(), text, console=self._console, transient=True)
        self._shown.enter_context(progress)
        progress.add_task(escape(f"{self._what} …"), total=None)

    def _remind(self) -> None:
        _verbatim(self._console, f"{self._what} …")
        reminder = threading.Thread(target=self._until_over, name="antiphon-starting", daemon=True)
        reminder.start()
        self._shown.callback(reminder.join)

    def _until_over(self) -> None:
        while not self._over.wait(self._reminder_s):
            _verbatim(self._console, f"{self._what} … {self._elapsed()}")

    def _elapsed(self) -> str:
        return f"{self._clock() - self._since:.0f} s"
