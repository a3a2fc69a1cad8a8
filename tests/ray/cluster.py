"""The process of a cluster, as tests use it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ANSWER_S = 240
"""A deployment takes half a minute on a machine with nothing else to do, and longer on HAProxy."""
STOP_S = 60
HA_PROXY = os.environ.get("ANTIPHON_TEST_HA_PROXY", "0")
"""1 puts HAProxy in the place of Serve's own proxy."""


class Cluster:
    """A cluster and the URL of its proxy. One command runs at a time."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self._process = process
        self._log = log
        self.url = f"http://127.0.0.1:{port}"
        self.api = f"{self.url}/v1"

    def ask(self, *command: Any) -> Any:
        """Return the answer to a command. Raises: ClusterError."""
        if command:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        answer = json.loads(self._line() or '{"error": "it has ended"}')
        if "error" in answer:
            raise ClusterError(f"{answer['error']}\n{self.log()[-3000:]}")
        return answer["answer"]

    def deploy(self, settings: Mapping[str, Any], autoscaling: Any = None) -> None:
        self.ask("deploy", dict(settings), autoscaling)

    def replicas(self) -> dict[str, int]:
        found: dict[str, int] = self.ask("replicas")
        return found

    def servers(self, count: int) -> set[str]:
        """Return the ids of so many servers, as the answers of the proxy name them."""
        found: set[str] = set()
        for _ in range(500):
            answer = httpx.get(f"{self.url}/console/state", timeout=30)
            found.add(answer.json()["server"]["id"])
            if len(found) == count:
                return found
        raise AssertionError(f"only {found} answer")

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _line(self) -> str:
        read: Future[str] = Future()
        assert self._process.stdout is not None
        lines = self._process.stdout
        threading.Thread(target=lambda: read.set_result(lines.readline()), daemon=True).start()
        return read.result(ANSWER_S)


class ClusterError(Exception):
    """A command failed."""


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster without an application, and stop it at the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # or Ray would write one into the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": HA_PROXY,
    }
    script = Path(__file__).with_name("cluster_process.py")
    output = folder / "ray.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder / "ray"), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={**os.environ, **own},
        )
    cluster = Cluster(process, port, output)
    with process:
        try:
            cluster.ask()
            yield cluster
        finally:
            try:
                process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()  # what Ray has started ends with it
                raise
