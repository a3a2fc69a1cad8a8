"""The server's startup and shutdown messages: styled in a terminal, plain lines in a log."""

from __future__ import annotations

import io
import logging
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import metadata
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from antiphon.entrypoints.http.pages import openapi
from antiphon.entrypoints.http.pages.first_request import curl_line, python_lines
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.small_model import how_to_get_it

logger = logging.getLogger("antiphon.server")
REMINDER_S = 15.0
STOPS = (CancelledError, KeyboardInterrupt)
"""How a task ends that the operator stops."""
_WILDCARDS = ("0.0.0.0", "::", "")  # a server can listen on them, but nothing can connect to them


def url_of(host: str, port: int, *, is_tls: bool = False) -> str:
    """Return the URL at which this machine reaches a server that listens on `host`.

    >>> url_of("0.0.0.0", 8000), url_of("::1", 80)
    ('http://127.0.0.1:8000', 'http://[::1]:80')
    """
    host = "127.0.0.1" if host in _WILDCARDS else host
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


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
    """Print what is served and how to reach it. `url` is the server's URL on this machine.

    `first_key_command` creates the first API key; pass it if there is no key yet.
    """
    console = console or Console(stderr=True)
    store_text = (
        store if settings.sqlite_file is None else f"{store} ({settings.sqlite_file.absolute()})"
    )
    if durability is not None:
        store_text = f"{store_text}: {durability}"
    facts = {
        "models": ", ".join(models),
        "engine": engine,
        "format": format,
        "store": store_text,
        **({"containers": f"limits by {containers}"} if containers else {}),
        "api keys": _describe_keys(settings, first_key_command),
        "url": f"{url}/v1",
        "openapi": url + openapi.PATH,
        **({"for a real model": how_to_get_it()} if _is_default(settings) else {}),
    }
    show = _print_styled if console.is_terminal else _print_plain
    needs_key = settings.needs_keys
    show(
        console,
        facts,
        curl_line(url, models[0], needs_key=needs_key),
        python_lines(url, models[0], needs_key=needs_key),
    )


def stopping(
    *, running: int, answering: int, limit_s: float, drain_delay_s: float, is_repeated: bool
) -> str | None:
    """Return the message for a signal to stop the server, or None if there is nothing to wait for.

    >>> stopping(running=1, answering=1, limit_s=25, drain_delay_s=0, is_repeated=False)
    'Stopping: waiting up to 25 s for 1 running response. Press Ctrl-C again to end it now.'
    """
    if running:
        work, pronoun = _count(running, "running response"), "it" if running == 1 else "them"
    elif answering:
        work, pronoun = _count(answering, "open request"), "it" if answering == 1 else "them"
    elif drain_delay_s and not is_repeated:
        return f"Stopping in {drain_delay_s:g} s. Press Ctrl-C again to stop now."
    else:
        return None
    if is_repeated:
        return f"Stopping now: ending {work}."
    return (
        f"Stopping: waiting up to {max(limit_s, drain_delay_s):g} s for {work}. "
        f"Press Ctrl-C again to end {pronoun} now."
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(sentence: str, console: Console | None = None) -> None:
    """Print one line to standard error, like the banner."""
    _print_verbatim(console or Console(stderr=True), sentence)


class _LogLines(io.StringIO):
    """A file whose lines are logged."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in filter(None, lines):
            logger.info("%s", line)
        return len(text)


def console_of(settings: Settings) -> Console:
    """Return where these messages go: into the log, if each line of it must be JSON."""
    return Console(file=_LogLines()) if settings.log_format == "json" else Console(stderr=True)


def _is_default(settings: Settings) -> bool:
    """Whether the models are scripted because nobody named one."""
    return not settings.models and (settings.model, settings.engine) == (None, "auto")


def _describe_keys(settings: Settings, first_key_command: str | None) -> str:
    if first_key_command is not None:
        return f"NONE YET, so every request is refused; create one with `{first_key_command}`"
    if not settings.needs_keys:
        return "not required"
    others = []
    if settings.oidc.issuer is not None:
        others.append(f"a token of {settings.oidc.issuer}")
    if settings.trusted_proxy.is_on:
        proxies = " ".join(settings.trusted_proxy.addresses)
        others.append(f"the header {settings.trusted_proxy.tenant_header} from {proxies}")
    return ", or ".join(["required", *others])


def _print_styled(
    console: Console, facts: dict[str, str], curl: str, python: Sequence[str]
) -> None:
    console.print(f"\n [bold green]●[/] [bold]antiphon[/] {_version()} is ready\n", highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        style = "bold cyan" if name in ("url", "openapi") else "bold"
        style = "bold yellow" if value.startswith("NONE") else style
        table.add_row(f"   [dim]{name}[/]", f"[{style}]{escape(value)}[/]")
    console.print(table)
    # No frame and no wrapping around text to copy.
    console.print("\n   [dim]try it from a shell[/]")
    _print_verbatim(console, curl)
    console.print("\n   [dim]or from Python[/]")
    _print_verbatim(console, *python)
    console.print()


def _print_plain(console: Console, facts: dict[str, str], curl: str, python: Sequence[str]) -> None:
    summary = "; ".join(f"{name}: {value}" for name, value in facts.items())
    _print_verbatim(console, f"antiphon {_version()} is ready; {summary}", f"try: {curl}")
    _print_verbatim(console, "or in Python: " + "; ".join(python))


def _print_verbatim(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _version() -> str:
    return metadata.version("antiphon")


class starting:  # noqa: N801 - reads as a statement: `with starting("loading the model"):`
    """A progress display for a long task: a spinner in a terminal, a line now and then in a log.

    It works with `with` and `async with`. It runs in its own thread, since loading a model blocks
    the event loop.
    """

    def __init__(
        self,
        task: str,
        *,
        console: Console | None = None,
        reminder_s: float = REMINDER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task = task
        self._console = console or Console(stderr=True)
        self._reminder_s = reminder_s
        self._clock = clock
        self._ended = threading.Event()
        self._display = ExitStack()

    def __enter__(self) -> starting:
        self._started_at = self._clock()
        if self._console.is_terminal:
            self._start_spinner()
        else:
            self._start_reminders()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._display.close()
        outcome = "done" if kind is None else "stopped" if issubclass(kind, STOPS) else "failed"
        _print_verbatim(self._console, f"{self._task}: {outcome} after {self._elapsed()}")

    async def __aenter__(self) -> starting:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _start_spinner(self) -> None:
        text = TextColumn("{task.description} [dim]{task.elapsed:.0f} s[/]")
        progress = Progress(SpinnerColumn(), text, console=self._console, transient=True)
        self._display.enter_context(progress)
        progress.add_task(escape(f"{self._task} …"), total=None)

    def _start_reminders(self) -> None:
        _print_verbatim(self._console, f"{self._task} …")
        reminders = threading.Thread(target=self._remind, name="antiphon-starting", daemon=True)
        reminders.start()
        self._display.callback(reminders.join)

    def _remind(self) -> None:
        while not self._ended.wait(self._reminder_s):
            _print_verbatim(self._console, f"{self._task} … {self._elapsed()}")

    def _elapsed(self) -> str:
        return f"{self._clock() - self._started_at:.0f} s"
