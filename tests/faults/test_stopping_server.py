"""A server that is told to stop, or is killed: what it ran has an end, here or elsewhere."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

LONG = '@@script [[{"say": "word ", "repeat": 10000, "tick": 0.02}]]'
SHORT = '@@script [[{"say": "word ", "repeat": 20, "tick": 0.02}]]'
MEDIUM = '@@script [[{"say": "word ", "repeat": 150, "tick": 0.02}]]'
SILENT = '@@script [[{"delay": 2, "say": "done"}]]'
ARRIVES_S = 30

pytestmark = pytest.mark.faults


def body(asked: str, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted-chat", "input": asked, **fields}


def last_event(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().rpartition("data: ")[2])
    return found


class Reader(threading.Thread):
    """Reads a stream to its end; `begun` is set when an event of type `begins` was there,
    `is_whole` when its server ended it.
    """

    def __init__(
        self, url: str, *, method: str = "GET", begins: str = "output_text.delta", **asked: Any
    ) -> None:
        super().__init__()
        self._begins = begins
        self._asked = {"method": method, "url": url, **asked}
        self.begun = threading.Event()
        self.text = ""
        self.is_whole = False
        self.start()

    def run(self) -> None:
        with (
            suppress(httpx.RemoteProtocolError),  # a server that is killed
            httpx.stream(**self._asked, timeout=30) as answer,
        ):
            for part in answer.iter_text():
                self.text += part
                if self._begins in self.text:
                    self.begun.set()
            self.is_whole = True

    def end(self) -> dict[str, Any]:
        self.join(timeout=30)
        assert self.is_whole
        return last_event(self.text)


def in_background(api: str, asked: str) -> str:
    answer = httpx.post(f"{api}/responses", json=body(asked, background=True))
    return str(answer.json()["id"])


def shown(api: str, response_id: str) -> Reader:
    """Return a reader of a response of which something has been shown."""
    reader = Reader(f"{api}/responses/{response_id}?stream=true")
    assert reader.begun.wait(ARRIVES_S)
    return reader


def state(api: str, response_id: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{api}/responses/{response_id}").json()
    return found


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + ARRIVES_S
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return found


def over(api: str, response_id: str) -> dict[str, Any]:
    """Wait until the response is over, and return it."""

    def ended() -> dict[str, Any] | None:
        found = state(api, response_id)
        return None if found["status"] in ("queued", "in_progress") else found

    found: dict[str, Any] = until(ended)
    return found


class Process:
    """A server that can be sent signals."""

    def __init__(self, folder: Path, store: str, *options: str) -> None:
        command = [sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--port", "0"]
        self._process = subprocess.Popen(
            [*command, "--store", store, "--data-dir", str(folder), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        assert self._process.stderr is not None
        ready = next(line for line in self._process.stderr if " is ready" in line)
        self.api = ready.partition("url: ")[2].partition(";")[0]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        self._process.communicate(timeout=30)
        return self._process.returncode


@contextmanager
def process(folder: Path, store: str, *options: str) -> Iterator[Process]:
    server = Process(folder, store, *options)
    try:
        yield server
    finally:
        server.send(signal.SIGKILL)
        server.end()


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept.db"


# --- told to stop ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "graceful_s", "status"), [(SHORT, 10, "completed"), (LONG, 0, "failed")]
)
def test_a_stream_ends_with_its_terminal_event(
    serve: Any, asked: str, graceful_s: int, status: str
) -> None:
    with serve(graceful_shutdown_s=graceful_s) as server:
        asked_for = body(asked, stream=True)
        reader = Reader(f"{server.api}/responses", method="POST", json=asked_for)
        assert reader.begun.wait(ARRIVES_S)
    assert reader.end()["response"]["status"] == status


def test_a_background_run_that_was_heard_goes_on_elsewhere(serve: Any, file: str) -> None:
    with serve(store=file, graceful_shutdown_s=0) as server:
        response_id = in_background(server.api, MEDIUM)
        reader = shown(server.api, response_id)
    last = reader.end()
    assert last["type"] == "response.output_text.delta", "its stream ends, and may be resumed"
    with serve(store=file) as server:
        response = over(server.api, response_id)
        after = f"stream=true&starting_after={last['sequence_number']}"
        resumed = Reader(f"{server.api}/responses/{response_id}?{after}")
        assert resumed.end()["response"] == response
    assert response["output"][0]["content"][0]["text"] == "word " * 150


def test_a_background_run_in_memory_is_ended(serve: Any) -> None:
    with serve(store="memory", graceful_shutdown_s=0) as server:
        reader = shown(server.api, in_background(server.api, LONG))
    assert reader.end()["response"]["status"] == "failed"


def test_a_background_run_that_was_not_heard_goes_on_elsewhere(serve: Any, file: str) -> None:
    with serve(store=file, graceful_shutdown_s=0) as server:
        response_id = in_background(server.api, SILENT)
        url = f"{server.api}/responses/{response_id}?stream=true"
        reader = Reader(url, begins="response.in_progress")
        assert reader.begun.wait(ARRIVES_S)
    assert reader.end()["type"] == "response.in_progress", "its stream ends, and may be resumed"
    with serve(store=file) as server:
        assert over(server.api, response_id)["status"] == "completed"
        resumed = Reader(f"{server.api}/responses/{response_id}?stream=true&starting_after=2")
        assert resumed.end()["response"]["status"] == "completed"
    assert '"sequence_number":3,' in resumed.text
    assert '"sequence_number":2,' not in resumed.text


def test_a_reader_of_another_servers_run_does_not_hold_up_the_end(serve: Any, file: str) -> None:
    with serve(store=file, graceful_shutdown_s=0) as runs:
        response_id = in_background(runs.api, LONG)
        with serve(store=file, graceful_shutdown_s=10) as reads:
            reader = shown(reads.api, response_id)
            told_at = time.monotonic()
        assert time.monotonic() - told_at < 5
        assert reader.end()["type"] == "response.output_text.delta"
        assert state(runs.api, response_id)["status"] == "in_progress"


def test_it_answers_while_it_drains_and_begins_nothing(tmp_path: Path, file: str) -> None:
    options = ("--drain-delay-s", "5", "--graceful-shutdown-s", "10")
    with process(tmp_path, file, *options) as server, httpx.Client(timeout=30) as client:
        url = f"{server.api}/responses"
        reader = Reader(url, method="POST", json=body(SHORT.replace("20", "50"), stream=True))
        assert reader.begun.wait(ARRIVES_S)
        root = server.api.removesuffix("/v1")
        assert client.get(f"{root}/readyz").status_code == 200
        server.send(signal.SIGTERM)
        until(lambda: client.get(f"{root}/readyz").status_code == 503)
        assert client.get(f"{root}/readyz").json()["server"] == "stopping"
        for path in ("responses", "responses/compact"):
            refused = client.post(f"{server.api}/{path}", json=body("hi"))
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.headers["connection"] == "close"
        assert client.get(f"{root}/health/ready").status_code == 503
        assert client.get(f"{root}/livez").status_code == 200
        assert reader.end()["response"]["status"] == "completed"
        assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_gone_in_time_and_told_again_at_once(
    tmp_path: Path, file: str, number: signal.Signals
) -> None:
    options = ("--graceful-shutdown-s", "60", "--drain-delay-s", "60")
    with process(tmp_path, file, *options) as server:
        response_id = in_background(server.api, LONG)
        reader = shown(server.api, response_id)
        server.send(number)
        root = server.api.removesuffix("/v1")
        until(lambda: httpx.get(f"{root}/readyz").status_code == 503)
        server.send(number)
        assert reader.end()["type"] == "response.output_text.delta"
        assert server.end() == 0


def test_its_time_is_kept(tmp_path: Path, file: str) -> None:
    with process(tmp_path, file, "--graceful-shutdown-s", "1") as server:
        reader = Reader(f"{server.api}/responses", method="POST", json=body(LONG, stream=True))
        assert reader.begun.wait(ARRIVES_S)
        told_at = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.end() == 0
        assert time.monotonic() - told_at < 10
    assert reader.end()["response"]["status"] == "failed"


# --- killed ---------------------------------------------------------------------------------------


def test_what_a_killed_server_ran_goes_on_but_for_what_had_a_client(
    serve: Any, tmp_path: Path, file: str
) -> None:
    with process(tmp_path, file) as server:
        heard, silent = (in_background(server.api, asked) for asked in (MEDIUM, SILENT))
        url = f"{server.api}/responses"
        foreground = Reader(url, method="POST", json=body(LONG, stream=True, store=True))
        assert foreground.begun.wait(ARRIVES_S)
        shown(server.api, heard)
    with serve(store=file) as server:
        ended = over(server.api, heard)
        assert ended["output"][0]["content"][0]["text"] == "word " * 150
        assert over(server.api, silent)["status"] == "completed"
        left = json.loads(foreground.text.partition("data: ")[2].partition("\n")[0])
        assert over(server.api, left["response"]["id"])["status"] == "failed"


def test_another_server_takes_over_while_it_runs(serve: Any, tmp_path: Path, file: str) -> None:
    with serve(store=file) as other:
        with process(tmp_path, file, "--lease-s", "1") as server:
            heard, silent = (in_background(server.api, asked) for asked in (MEDIUM, SILENT))
            reader = shown(other.api, heard)
        assert reader.end()["response"]["status"] == "completed"
        assert over(other.api, silent)["status"] == "completed"


@pytest.mark.parametrize("engine", ["chat", "vllm_http"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_can_be_stopped_while_it_waits_for_a_silent_model_server(
    tmp_path: Path, engine: str, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        table = f'[[models]]\nname = "silent"\nengine = "{engine}"\nurl = "{url}"\n'
        (tmp_path / "antiphon.toml").write_text(table)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--port", "0"),
                *("--store", "memory", "--config", str(tmp_path / "antiphon.toml")),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        with process, silent.accept()[0]:
            try:
                process.send_signal(number)
                _, printed = process.communicate(timeout=ARRIVES_S)
            finally:
                process.kill()
    assert process.returncode in (0, 130)
    assert "silent: stopped after" in printed
    assert "Traceback" not in printed
