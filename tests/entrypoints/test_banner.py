"""The startup and shutdown messages, in a terminal and in a log."""

from __future__ import annotations

import io
import json
import shlex
import threading
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from antiphon.entrypoints.http.pages.first_request import python_lines
from antiphon.entrypoints.server import banner
from antiphon.entrypoints.settings import Settings

URL = "http://127.0.0.1:8000"


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=60, _environ={})


def log() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=60, _environ={})


def output_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def show_ready(console: Console, settings: Settings) -> str:
    banner.ready(
        settings,
        models=["it's", "scripted-harmony"],
        url=URL,
        engine="scripted",
        format="chat:scripted",
        store=settings.store,
        console=console,
    )
    return output_of(console)


@pytest.mark.parametrize("console", [terminal(), log()], ids=["terminal", "log"])
def test_ready_says_what_is_served_and_how_to_reach_it(console: Console) -> None:
    text = show_ready(console, Settings(data_dir=Path("/srv/a")))
    for fact in ("scripted-harmony", "chat:scripted", "/srv/a/antiphon.db", URL + "/schema"):
        assert fact in text


@pytest.mark.parametrize("console", [terminal(), log()], ids=["terminal", "log"])
def test_the_curl_line_can_be_copied_whole(console: Console) -> None:
    text = show_ready(console, Settings(store="memory"))
    line = next(each for each in text.splitlines() if "curl " in each)
    words = shlex.split(line.removeprefix("try: "))
    assert words[:2] == ["curl", f"{URL}/v1/responses"]
    assert json.loads(words[-1]) == {"model": "it's", "input": "Say hello."}


def test_the_python_lines_are_python_for_the_first_model() -> None:
    code = "\n".join(python_lines(URL, 'a"b'))
    compile(code, "banner", "exec")
    assert f'base_url="{URL}/v1"' in code
    assert r'model="a\"b"' in code


def test_a_log_gets_whole_lines_without_escape_codes() -> None:
    text = show_ready(log(), Settings(store="memory"))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("gpu-1.example", "http://gpu-1.example:80"),
    ],
)
def test_the_url_is_one_that_clients_can_connect_to(host: str, url: str) -> None:
    assert banner.url_of(host, 80) == url


def test_a_long_start_says_what_it_is_doing_and_how_long_it_took() -> None:
    console, times = log(), iter([10.0, 22.4])
    with banner.starting("loading the model", console=console, clock=lambda: next(times)):
        assert output_of(console) == "loading the model …\n"
    assert output_of(console).splitlines()[1:] == ["loading the model: done after 12 s"]


def test_a_start_that_fails_says_so_and_lets_the_error_through() -> None:
    console = log()
    with (
        pytest.raises(RuntimeError, match="no such folder"),
        banner.starting("loading the model", console=console),
    ):
        raise RuntimeError("no such folder")
    assert "loading the model: failed after 0 s" in output_of(console)


def test_a_start_that_the_operator_stops_has_not_failed() -> None:
    console = log()
    with (
        pytest.raises(CancelledError),
        banner.starting("loading the model", console=console),
    ):
        raise CancelledError
    assert "loading the model: stopped after 0 s" in output_of(console)


async def test_a_log_gets_reminders_while_the_event_loop_is_blocked() -> None:
    console, reminded = log(), threading.Event()
    times = iter([0.0, 15.0])

    def clock() -> float:
        now = next(times, 30.0)
        if now == 30.0:
            reminded.set()
        return now

    async with banner.starting("loading", console=console, reminder_s=0.001, clock=clock):
        assert reminded.wait(30)
    assert "loading … 15 s" in output_of(console).splitlines()


def test_a_terminal_gets_a_spinner_that_disappears_at_the_end() -> None:
    console = terminal()
    with banner.starting("loading", console=console):
        pass
    text = output_of(console)
    assert "loading …" in text
    assert text.endswith("loading: done after 0 s\n")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, None),
        ({"is_repeated": True}, None),
        (
            {"running": 2, "answering": 1},
            "Stopping: waiting up to 25 s for 2 running responses. "
            "Press Ctrl-C again to end them now.",
        ),
        (
            {"answering": 1},
            "Stopping: waiting up to 25 s for 1 open request. Press Ctrl-C again to end it now.",
        ),
        ({"drain_delay_s": 5}, "Stopping in 5 s. Press Ctrl-C again to stop now."),
        ({"running": 2, "is_repeated": True}, "Stopping now: ending 2 running responses."),
    ],
)
def test_the_shutdown_message_says_what_the_server_waits_for(
    state: Any, message: str | None
) -> None:
    idle = {"running": 0, "answering": 0, "limit_s": 25, "drain_delay_s": 0, "is_repeated": False}
    assert banner.stopping(**{**idle, **state}) == message
