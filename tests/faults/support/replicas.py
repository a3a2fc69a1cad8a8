"""Servers as processes of their own, on one store, that can be killed, stopped and woken."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import Struct

T = TypeVar("T")

MODEL = "scripted-chat"
LEASE_S = 2.0
"""Short, so that tests need not wait long for the death of a server to be noticed."""
START_S = 90.0
"""On a machine however busy."""


class Replica:
    """One server; `start` gives it a new life at the same address. `within` starts its command."""

    def __init__(self, folder: Path, *options: str, within: Sequence[str] = ()) -> None:
        self._folder = folder
        self._options = options
        self._within = within
        self._port = "0"
        self.url = ""
        self.output = folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def api(self) -> str:
        return f"{self.url}/v1"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, limit_s: float = START_S) -> None:
        """Return when it answers."""
        told = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self._within,
                    *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve"),
                    *("--port", self._port, "--data-dir", str(self._folder.parent)),
                    *("--lease-s", str(LEASE_S), *self._options),
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        address = wait_for(lambda: self._address(told), limit_s=limit_s)
        self.url = address
        self._port = address.rpartition(":")[2]

    def _address(self, told: int) -> str | None:
        """Return the address that the server printed in this life, once it has."""
        assert self.process is not None
        printed = self.output.read_bytes()[told:].decode(errors="replace")
        assert self.process.poll() is None, f"the server did not start:\n{printed[-3000:]}"
        for word in printed.split():
            if word.startswith("http://127.0.0.1:") and word.endswith("/v1/responses"):
                return word.removesuffix("/v1/responses")
        return None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=30)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, limit_s: float = 20) -> int:
        """Ask it to stop, and return its exit code."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(timeout=limit_s)

    def log(self) -> str:
        return self.output.read_text(errors="replace")


@contextmanager
def replicas(
    folder: Path,
    *options: str,
    count: int = 2,
    start_s: float = START_S,
    share_folder: bool = True,
) -> Iterator[list[Replica]]:
    """Serve from so many processes until the block is left.

    If they do not share a folder, it is as if each had a machine of its own, with the seal key.
    """
    started: list[Replica] = []
    try:
        for number in range(count):
            own = folder / f"replica{number}"
            own.mkdir()
            apart = ["--data-dir", str(own), "--seal-key-file", str(folder / "seal.key")]
            started.append(Replica(own, *options, *([] if share_folder else apart)))
            started[-1].start(start_s)
        yield started
    finally:
        for replica in started:
            if replica.process is not None and replica.process.poll() is None:
                replica.signal(signal.SIGCONT)
                replica.kill()


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(found: Callable[[], T | None], limit_s: float = 30.0) -> T:
    """Return what `found` returns once it is something."""
    deadline = time.monotonic() + limit_s
    while (value := found()) is None:
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
    return value


def background(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": prompt, "background": True, **fields}


def frames_of(body: bytes) -> dict[int, bytes]:
    """Return the frames of a stream by their numbers, without keepalives and a torn last one."""
    found: dict[int, bytes] = {}
    for block in body.split(b"\n\n")[:-1]:
        frame = block.removeprefix(b": keepalive\n")
        if frame.startswith(b"event: "):
            number = sequence_number_of(frame)
            assert number not in found, f"event {number} came twice in one stream"
            found[number] = frame
    return found


class _Numbered(Struct):
    sequence_number: int


_decode = msgspec.json.Decoder(_Numbered).decode


def sequence_number_of(frame: bytes) -> int:
    return _decode(frame.partition(b"data: ")[2]).sequence_number


def stream(api: str, response_id: str, after: int = -1, limit_s: float = 20) -> bytes:
    """Return the rest of a response's stream, to its end."""
    asked: Mapping[str, Any] = {"stream": "true", "starting_after": after}
    answer = httpx.get(f"{api}/responses/{response_id}", params=asked, timeout=limit_s)
    assert answer.status_code == 200, answer.text
    return answer.content
