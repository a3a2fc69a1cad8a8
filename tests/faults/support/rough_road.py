"""A way to an MCP server of this machine on which connections fail at random, from a seed."""

from __future__ import annotations

import random
import re
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).with_name("hour_tools.py")

FAULTS: Sequence[str] = ("slow", "404", "503", "odd", "reset", "cut")
FAULTY = 0.3
"""The share of the connections that fail."""
BREAK_EVERY_S = 3.0
"""The mean time from one connection that is broken, whatever it carries, to the next."""

TICK_S = 0.05
PIECE = 65_536
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class RoughRoad(socketserver.ThreadingTCPServer):
    """Leads connections to `target`. Once it `is_rough`, some of them fail."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, target: int, seed: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.target = target
        self.is_rough = False
        self._seed = seed
        self._numbers = count()
        self._open: dict[int, socket.socket] = {}

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def next_random(self) -> random.Random:
        return random.Random(f"{self._seed} {next(self._numbers)}")

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open[id(request)] = request
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(id(request), None)

    def break_one(self, chance: random.Random) -> None:
        """Break one of the connections that are open."""
        if self.is_rough and (connections := [*self._open.values()]):
            with suppress(OSError):
                chance.choice(connections).shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        pass  # whoever asked, or the server, has gone


class _Connection(socketserver.BaseRequestHandler):
    server: RoughRoad
    request: socket.socket

    def handle(self) -> None:
        chance = self.server.next_random()
        is_faulty = self.server.is_rough and chance.random() < FAULTY
        match chance.choice(FAULTS) if is_faulty else "":
            case "reset":
                _reset(self.request)
            case "404" | "503" as status:
                self._answer(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\n".encode(), b"")
            case "odd":
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
                self._answer(head + b"content-length: 9\r\n", b"<html>42\n")
            case "cut":
                self._lead(chance.randrange(600))
            case "slow":
                time.sleep(chance.uniform(0.05, 0.4))
                self._lead(None)
            case _:
                self._lead(None)

    def _answer(self, head: bytes, body: bytes) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            if not (part := self.request.recv(PIECE)):
                return
            asked += part
        received = len(asked.partition(b"\r\n\r\n")[2])
        length = _LENGTH.search(asked)
        while length is not None and received < int(length[1]):
            received += len(self.request.recv(PIECE)) or PIECE
        self.request.sendall(head + b"connection: close\r\n\r\n" + body)

    def _lead(self, cut_after: int | None) -> None:
        """Lead both ways until one side ends, or so many bytes of the answer have passed."""
        with socket.create_connection(("127.0.0.1", self.server.target), timeout=30) as far:
            far.settimeout(None)
            asking = threading.Thread(target=_pump, args=(self.request, far, None), daemon=True)
            asking.start()
            _pump(far, self.request, cut_after)
            if cut_after is not None:
                _reset(self.request)
        asking.join(30)


def _pump(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    passed = 0
    with suppress(OSError):
        while data := source.recv(PIECE):
            if limit is not None and passed + len(data) > limit:
                target.sendall(data[: limit - passed])
                return
            passed += len(data)
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def rough_server(transport: str, port: int, seed: str, notes: Path) -> Iterator[RoughRoad]:
    """Run an MCP server, start it again whenever it has ended, and yield the way to it."""
    command = [sys.executable, str(TOOLS), transport, str(port), seed, str(notes)]
    is_over = threading.Event()
    lives = [subprocess.Popen(command, stderr=subprocess.DEVNULL)]

    def keep_alive() -> None:
        chance = random.Random(f"{seed} {transport} breaks")
        while not is_over.wait(TICK_S):
            if chance.random() < TICK_S / BREAK_EVERY_S:
                road.break_one(chance)
            if lives[-1].poll() is not None:
                lives.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    with RoughRoad(port, f"{seed} {transport}") as road:
        threads = [
            threading.Thread(target=keep_alive),
            threading.Thread(target=road.serve_forever, args=(0.01,)),
        ]
        for thread in threads:
            thread.start()
        try:
            wait_until_it_listens(port)
            yield road
        finally:
            is_over.set()
            road.shutdown()
            for thread in threads:
                thread.join()
            lives[-1].kill()
            for life in lives:
                life.wait(30)


def wait_until_it_listens(port: int, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, "the MCP server did not start in time"
            time.sleep(0.05)
        else:
            return
