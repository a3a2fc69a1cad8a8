"""The process of a model: killed in the middle of a run, and left behind by a killed server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import children_of, is_process_alive

pytestmark = pytest.mark.real
URL = re.compile(r"url: (http://\S+?)/v1")


class Server:
    """A server with the model's file, in a process of its own."""

    def __init__(self, weights: Path, folder: Path) -> None:
        command = ("-m", "antiphon.entrypoints.cli", "serve", str(weights), "--port", "0")
        self.process = subprocess.Popen(
            [sys.executable, *command, "--store", "memory", "--served-model-name", "small"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = next(each[1] for line in self.process.stdout if (each := URL.search(line)))

    def child(self) -> int:
        """Return the process id of the model's process."""
        pids = children_of(self.process.pid)
        [found] = [pid for pid in pids if "llama" in Path(f"/proc/{pid}/cmdline").read_text()]
        return found

    def ask(self, **fields: Any) -> Any:
        body = {"model": "small", "input": "Tell me a tale.", "temperature": 0, **fields}
        request = urllib.request.Request(
            f"{self.url}/v1/responses",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=60)


@pytest.fixture
def server(weights: Path, tmp_path: Path) -> Iterator[Server]:
    server = Server(weights, tmp_path)
    yield server
    with suppress(ProcessLookupError):
        server.process.kill()
    server.process.wait()
    assert server.process.stdout is not None
    server.process.stdout.close()


def test_a_killed_model_fails_its_run_and_is_back_by_itself(server: Server) -> None:
    child = server.child()
    events: list[str] = []
    with server.ask(stream=True, max_output_tokens=2000, ignore_eos=True) as stream:
        for line in stream:
            if line.startswith(b"event: "):
                events.append(line.decode().split()[1])
            if events.count("response.output_text.delta") == 5 and is_process_alive(child):
                os.kill(child, signal.SIGKILL)
    assert events[-1] in ("response.failed", "response.completed", "response.incomplete")
    answer = None
    while answer is None:
        try:
            answer = json.load(server.ask(max_output_tokens=16))
        except urllib.error.HTTPError as error:
            assert error.code == 503
            error.close()
            time.sleep(0.1)
    assert answer["output"][0]["content"][0]["text"]
    assert server.child() != child


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_the_model_ends_with_the_server(server: Server, ending: int) -> None:
    child = server.child()
    server.process.send_signal(ending)
    while is_process_alive(child):
        time.sleep(0.05)
