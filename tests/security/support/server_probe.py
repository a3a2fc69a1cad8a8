"""A server in a process of its own, looked at from outside while a test attacks it.

with probe_server(tmp_path) as server:
    with server.watch() as attack:
        ...                          # send what might freeze it, or fill its memory
    assert attack.freeze_s < MAX_FREEZE_S
    assert attack.growth_bytes < MAX_GROWTH_BYTES

`pytest -s` prints what was seen.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
from tests.faults.support.replicas import Replica
from tests.support.machine_speed import slowness

MAX_FREEZE_S = 0.05
"""The longest wait for `/livez` that an attack may cause, on an idle machine."""

MAX_GROWTH_BYTES = 20 * 1024 * 1024
"""The memory that an attack may leave behind."""

BUSY_FACTOR = 3.0
"""How many times the idle machine's longest wait may pass before the server is to blame."""

CALM_S = 0.5
GIVE_BACK_S = 8.0


class Observation(msgspec.Struct):
    """What an attack did: complete after its block."""

    idle_s: float = 0.0
    """The longest wait for `/livez` before the attack: what the machine itself costs."""

    freeze_s: float = 0.0
    """The longest wait for `/livez` during the attack."""

    growth_bytes: int = 0
    """How much more resident memory the server has after the attack than before."""

    peak_growth_bytes: int = 0
    """How much more it had at its peak; 0 if the peak was before the attack."""

    slowness: float = 1.0
    """How many times longer the machine takes than a usual one."""

    def limit(self, seconds: float) -> float:
        """Return the wait to accept for one that is so long on a usual machine at rest."""
        return max(seconds * self.slowness, BUSY_FACTOR * self.idle_s)

    @property
    def max_freeze_s(self) -> float:
        """The longest wait for `/livez` to accept."""
        return self.limit(MAX_FREEZE_S)

    def __str__(self) -> str:
        grown, peak = (size / 2**20 for size in (self.growth_bytes, self.peak_growth_bytes))
        return (
            f"freeze {self.freeze_s * 1000:.0f} ms (idle {self.idle_s * 1000:.0f} ms, machine "
            f"{self.slowness:.1f} times slower), memory {grown:+.1f} MB, at the peak {peak:+.1f} MB"
        )


class ProbedServer:
    """A server with the scripted models, and a process that asks for `/livez` all the time."""

    def __init__(self, replica: Replica, prober: subprocess.Popen[bytes]) -> None:
        self.replica = replica
        self._prober = prober

    @property
    def url(self) -> str:
        return self.replica.url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def log(self) -> str:
        """Return what the server has written to its standard output and error."""
        return self.replica.output.read_text(encoding="utf-8", errors="replace")

    @contextmanager
    def watch(self, *, give_back_s: float = GIVE_BACK_S) -> Iterator[Observation]:
        """Observe the server in this block, then wait so long for it to give memory back."""
        seen = Observation()
        self.read_wait()
        time.sleep(CALM_S)  # to see what a wait costs when nothing happens
        seen.idle_s, seen.slowness = self.read_wait(), slowness()
        before, peak_before = self._memory("VmRSS"), self._memory("VmHWM")
        yield seen
        seen.freeze_s = self.read_wait()
        seen.growth_bytes = self._growth_since(before, give_back_s)
        peak = self._memory("VmHWM")
        seen.peak_growth_bytes = peak - before if peak > peak_before else 0
        print(f"\n{seen}")

    def _growth_since(self, before: int, give_back_s: float) -> int:
        """Return the growth that stays: the server gives free memory back every few seconds."""
        deadline = time.monotonic() + give_back_s
        while True:
            growth = self._memory("VmRSS") - before
            if growth < MAX_GROWTH_BYTES / 2 or time.monotonic() > deadline:
                return growth
            time.sleep(0.1)

    def read_wait(self) -> float:
        """Return the longest wait for `/livez` since the last call, in seconds."""
        # A frozen server answers late; then its wait is known, and the prober's one is too.
        httpx.get(f"{self.url}/livez", timeout=120)
        assert self._prober.stdin is not None
        assert self._prober.stdout is not None
        self._prober.stdin.write(b"\n")
        self._prober.stdin.flush()
        return float(self._prober.stdout.readline())

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.replica.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024


@contextmanager
def probe_server(folder: Path, *options: str) -> Iterator[ProbedServer]:
    """Start a server with these options of `antiphon serve`; kill it at the end of the block."""
    home = folder / "server"
    home.mkdir()
    replica = Replica(home, *options)
    try:
        replica.start()
        host, _, port = replica.url.removeprefix("http://").rpartition(":")
        prober = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("livez_prober.py")), host, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            yield ProbedServer(replica, prober)
        finally:
            prober.kill()
            prober.communicate()
    finally:
        if replica.process is not None:
            replica.kill()
