"""Server processes, and their CPU time and memory from Linux."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
_PROC = Path("/proc")


class StartFailed(Exception):
    """A server did not start. The message ends with its log."""


class Server:
    """A running server and its children."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid = pid
        self.port = port
        self.key = ""
        """What its clients send, if it needs keys."""

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process tree so far, user and system."""
        return sum(_cpu_s(pid) for pid in self._tree())

    def peak_rss_mb(self) -> float:
        """Return an upper bound of the peak memory of the process tree."""
        total_kb = 0
        for pid in self._tree():
            status = (_PROC / str(pid) / "status").read_text()
            if peak := re.search(r"VmHWM:\s+(\d+) kB", status):
                total_kb += int(peak[1])
        return total_kb * 1024 / 1e6

    def _tree(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in _PROC.iterdir():
            if entry.name.isdigit() and (stat := _stat(int(entry.name))):
                children.setdefault(int(stat[1]), []).append(int(entry.name))
        found, to_visit = [], [self._pid]
        while to_visit:
            pid = to_visit.pop()
            found.append(pid)
            to_visit += children.get(pid, [])
        return found


def _cpu_s(pid: int) -> float:
    # The CPU clock of another process, as clock_getcpuclockid(3) numbers it: /proc counts in
    # hundredths of a second, and a request takes less.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:  # it has ended
        return 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, or none if the process has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The name before them is in parentheses and may itself contain spaces and parentheses.
    return text[text.rindex(")") + 2 :].split()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def run_server(
    command: Sequence[str],
    *,
    port: int,
    folder: Path,
    variables: Mapping[str, str],
    start_limit_s: float = START_LIMIT_S,
) -> Iterator[Server]:
    """Run a server until the block ends, and wait until it responds. Raises: StartFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    logged = folder / "server.log"
    with logged.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(variables), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _await_answer(process, port, logged, start_limit_s)
            yield Server(process.pid, port)
        finally:
            _stop(process)


def _await_answer(
    process: subprocess.Popen[bytes], port: int, logged: Path, limit_s: float
) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(port):
            return
        time.sleep(0.05)
    tail = logged.read_text(errors="replace")[-2000:]
    raise StartFailed(f"{process.args!r} did not come up; it logged:\n{tail}")


def _answers(port: int) -> bool:
    # An open port is not enough: a server may listen before it is ready.
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as probe:
            probe.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_LIMIT_S)
