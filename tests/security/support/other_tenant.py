"""How long one tenant waits while another has as much work done as it can.

waits = compare(server, tmp_path, work, [Attack(request, connections=40)])
waits.check("an upload")

The usual wait is measured first: a machine that is busy with other work gets more time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import Struct
from tests.security.support.server_probe import BUSY_FACTOR, MAX_FREEZE_S, ProbedServer
from tests.support.machine_speed import slowness

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

TRIES = 15
ATTEMPTS = 3
LIMIT_S = 300.0
MAX_WAIT_S = 0.1
"""How long a short request may take beside any attack."""

CALM_S = 0.3
CALM_SHARE = 0.4
"""Of a processor: a server that uses less has ended what it was asked for."""
FULL_LOAD_S = 0.5


class Attack(Struct, frozen=True):
    """A request that is sent over so many connections, again and again or once in each round."""

    request: bytes
    connections: int
    once: bool = False


class Waits(Struct, frozen=True):
    """What was seen of a server without an attack, and with it. Waits are in seconds."""

    usual: list[float]
    attacked: list[float]
    idle_s: float
    """The longest wait for `/livez` before the attack, and during it."""
    freeze_s: float
    answers: Mapping[str, int]
    """How many answers of each status the attacker got."""
    slowness: float
    """How many times longer the machine takes than a usual one."""

    def check(self, name: str) -> None:
        usual, attacked = statistics.median(self.usual), statistics.median(self.attacked)
        print(
            f"\n{name}: {usual * 1000:.1f} -> {attacked * 1000:.1f} ms, "
            f"at most {max(self.usual) * 1000:.1f} -> {max(self.attacked) * 1000:.1f} ms; "
            f"freeze {self.idle_s * 1000:.0f} -> {self.freeze_s * 1000:.0f} ms; "
            f"answers {self.answers}"
        )
        assert attacked <= self._limit_s
        assert self.freeze_s <= self._max_freeze_s

    @property
    def is_within(self) -> bool:
        is_soon = statistics.median(self.attacked) <= self._limit_s
        return is_soon and self.freeze_s <= self._max_freeze_s

    @property
    def _limit_s(self) -> float:
        return max(MAX_WAIT_S * self.slowness, BUSY_FACTOR * statistics.median(self.usual))

    @property
    def _max_freeze_s(self) -> float:
        return max(MAX_FREEZE_S * self.slowness, BUSY_FACTOR * self.idle_s)


def make_keys(
    folder: Path, tenants: Sequence[str] = ("greedy", "other")
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return a key of each tenant, and the options of a server that knows them."""
    keys, path = {}, folder / "keys.toml"
    for tenant in tenants:
        keys[tenant], key = create_key(tenant, tenant, new_id=new_id, now=time.time)
        append(path, key)
    return keys, ("--auth", "on", "--keys-file", str(path))


def client_of(server: ProbedServer, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=f"{server.url}/v1", headers=headers, timeout=LIMIT_S)


def request_of(client: httpx.Client, method: str, path: str, **content: Any) -> bytes:
    """Return the bytes of a request that this client would send."""
    request = client.build_request(method, path, **content)
    body = request.read()
    lines = [f"{method} {request.url.raw_path.decode()} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def compare(
    server: ProbedServer,
    folder: Path,
    work: Callable[[], Any],
    attacks: Sequence[Attack],
    *,
    full_load_s: float = FULL_LOAD_S,
    pause_s: float = 0.0,
) -> Waits:
    """Measure how long the work takes, alone and during the attack.

    It is done several times: one time after the other, or with pauses of about `pause_s`. Where it
    waited for too long, again: what else uses the machine does not come back each time.
    """
    work()  # what is done once
    for _ in range(ATTEMPTS):
        waits = _compare(server, folder, work, attacks, full_load_s, pause_s)
        if waits.is_within:
            break
    return waits


def _compare(
    server: ProbedServer,
    folder: Path,
    work: Callable[[], Any],
    attacks: Sequence[Attack],
    full_load_s: float,
    pause_s: float,
) -> Waits:
    with _attacker(server, folder, attacks) as attacker:
        _wait_until_calm(server)
        server.read_wait()
        time.sleep(CALM_S)
        usual = _waits(work, pause_s)
        idle_s, slow = server.read_wait(), slowness()
        _tell(attacker)
        time.sleep(full_load_s)
        attacked = _waits(work, pause_s)
        freeze_s = server.read_wait()
        _tell(attacker)
        assert attacker.stdout is not None
        answers = json.loads(attacker.stdout.readline())
    return Waits(usual, attacked, idle_s, freeze_s, answers, slow)


@contextmanager
def _attacker(
    server: ProbedServer, folder: Path, attacks: Sequence[Attack]
) -> Iterator[subprocess.Popen[bytes]]:
    path = folder / "attacks.json"
    path.write_bytes(msgspec.json.encode(attacks))
    script = str(Path(__file__).with_name("attacker.py"))
    process = subprocess.Popen(
        [sys.executable, script, "127.0.0.1", str(server.port), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _tell(attacker: subprocess.Popen[bytes]) -> None:
    assert attacker.stdin is not None
    attacker.stdin.write(b"\n")
    attacker.stdin.flush()


def _waits(work: Callable[[], Any], pause_s: float) -> list[float]:
    waits = []
    for number in range(TRIES):
        # Of different lengths, so that they are in no step with what the attack does.
        time.sleep(pause_s * (0.5 + number / (TRIES - 1)))
        started_at = time.perf_counter()
        work()
        waits.append(time.perf_counter() - started_at)
    return waits


def _wait_until_calm(server: ProbedServer) -> None:
    until = time.monotonic() + LIMIT_S
    while True:
        before = _cpu_s(server)
        time.sleep(CALM_S)
        if _cpu_s(server) - before < CALM_SHARE * CALM_S:
            return
        assert time.monotonic() < until, "the server goes on with what it was asked for"


def _cpu_s(server: ProbedServer) -> float:
    """Return the processor time of the server and of its processes that have ended."""
    fields = Path(f"/proc/{server.replica.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
