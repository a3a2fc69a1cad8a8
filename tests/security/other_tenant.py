"""How long one tenant waits while another has as much work done as it can.

waits = compare(server, tmp_path, work, [Attack(request, connections=40)])
waits.check("an upload")

Usual and attacked waits alternate, so that whatever else the machine does is in both. Each round
gives a ratio; the median of these counts. ANTIPHON_TEST_WAIT_ROUNDS is the number of rounds.
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
from tests.security.server_probe import ProbedServer

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

ROUNDS = int(os.environ.get("ANTIPHON_TEST_WAIT_ROUNDS", "1"))
TRIES = 7
LIMIT_S = 300.0
FACTOR = 1.2
SLACK_S = float(os.environ.get("ANTIPHON_TEST_WAIT_SLACK_S", "0.2"))
"""What a machine with few processors may add, on which the attack takes all of them."""

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
    """The median wait of each round, in seconds."""

    usual: list[float]
    attacked: list[float]
    answers: list[Mapping[str, int]]
    """How many answers of each status the attacker got, in each round."""

    @property
    def ratio(self) -> float:
        pairs = zip(self.usual, self.attacked, strict=True)
        return statistics.median(attacked / usual for usual, attacked in pairs)

    def check(self, name: str, *, slack_s: float = SLACK_S) -> None:
        rounds = ", ".join(
            f"{usual * 1000:.1f} -> {attacked * 1000:.1f}"
            for usual, attacked in zip(self.usual, self.attacked, strict=True)
        )
        print(f"\n{name}: {self.ratio:.2f} times ({rounds} ms; answers {self.answers})")
        usual, attacked = statistics.median(self.usual), statistics.median(self.attacked)
        assert attacked <= FACTOR * usual + slack_s


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
    rounds: int = ROUNDS,
    pause_s: float = 0.0,
) -> Waits:
    """Measure how long the work takes, alone and during the attack, in turns.

    It is done several times: one time after the other, or with pauses of about `pause_s`.
    An attack whose work goes on after it can have only one round.
    """
    work()  # what is done once
    usual, attacked, answers = [], [], []
    with _attacker(server, folder, attacks) as attacker:
        for _ in range(rounds):
            _wait_until_calm(server)
            usual.append(_median_wait(work, pause_s))
            _tell(attacker)
            time.sleep(full_load_s)
            attacked.append(_median_wait(work, pause_s))
            _tell(attacker)
            assert attacker.stdout is not None
            answers.append(json.loads(attacker.stdout.readline()))
    return Waits(usual, attacked, answers)


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


def _median_wait(work: Callable[[], Any], pause_s: float) -> float:
    waits = []
    for number in range(TRIES):
        # Of different lengths, so that they are in no step with what the attack does.
        time.sleep(pause_s * (0.5 + number / (TRIES - 1)))
        started_at = time.perf_counter()
        work()
        waits.append(time.perf_counter() - started_at)
    return statistics.median(waits)


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
