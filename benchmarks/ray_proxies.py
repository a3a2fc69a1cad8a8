"""Measure the cost of a streamed token behind the proxies of Ray Serve, and without any.

    .venv-ray/bin/python -m benchmarks.ray_proxies

The same server, as `antiphon serve` and as one replica on a Ray cluster of each kind, gets the same
load in turn, A B C A B C …. Each token is a frame of its own, as those of real engines are. The CPU
time is that of the server or the replica, and of the proxy. BENCH_ROUNDS (3) and BENCH_REQUESTS (64
streams each time) set the length.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from benchmarks import load
from benchmarks.servers.server_process import Server, free_port, run_server

ROOT = Path(__file__).parents[1]
CONCURRENCY = 32
TOKENS = 200
TICK_S = 0.03
READY_S = 120.0
OBJECT_STORE_BYTES = 200 * 1024 * 1024
DIRECT = "no proxy"
PROXIES: Mapping[str, Mapping[str, str]] = {
    "Serve's Python proxy": {},
    "HAProxy": {"RAY_SERVE_ENABLE_HA_PROXY": "1"},
    "HAProxy, one thread": {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": "9102",  # its default is the other one's
        "RAY_SERVE_HAPROXY_STATS_PORT": "8405",
    },
}
"""Each by the variables of its cluster."""
MEASURED = re.compile(rb"ray::(ProxyActor|HAProxyManager|ServeReplica)|haproxy")
"""Of Ray's processes, those that handle requests."""


class RayServer(Server):
    """The replica and the proxy of a cluster."""

    def _tree(self) -> list[int]:
        return [pid for pid in super()._tree() if MEASURED.search(_command(pid))]


def main() -> int:
    rounds = int(os.environ.get("BENCH_ROUNDS", "3"))
    requests = int(os.environ.get("BENCH_REQUESTS", "64"))
    with tempfile.TemporaryDirectory(prefix="ab", ignore_cleanup_errors=True) as name:
        costs = _measure(Path(name), rounds, requests)
    for target, each in costs.items():
        ratio = statistics.median(a / b for a, b in zip(each, costs[DIRECT], strict=True))
        span = f"[{min(each):.0f} … {max(each):.0f}]"
        print(f"{target:<22} {statistics.median(each):6.1f} us a token {span:<12} {ratio:5.2f} x")
    return 0


def _measure(folder: Path, rounds: int, requests: int) -> Mapping[str, list[float]]:
    with ExitStack() as stack:
        servers = {DIRECT: stack.enter_context(_direct(folder))}
        for number, (proxy, variables) in enumerate(PROXIES.items()):
            on_ray = _on_ray(folder / str(number), variables)
            servers[proxy] = stack.enter_context(on_ray)
        costs: dict[str, list[float]] = {target: [] for target in servers}
        for server in servers.values():
            _cost(server, CONCURRENCY)
        for _ in range(rounds):
            for target, server in servers.items():
                costs[target].append(_cost(server, requests))
    return costs


def _cost(server: Server, requests: int) -> float:
    """Return the CPU time of a token in microseconds."""
    script = f'@@script [{{"say":"word ","repeat":{TOKENS},"tick":{TICK_S}}}]'
    body = {"model": "scripted-chat", "input": script, "stream": True, "store": False}
    request = load.request_of(server.port, body)
    before = server.cpu_s()
    load.run(server.port, request, requests=requests, concurrency=CONCURRENCY)
    return (server.cpu_s() - before) / (requests * TOKENS) * 1e6


@contextmanager
def _direct(folder: Path) -> Iterator[Server]:
    port = free_port()
    command = (
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "scripted-chat"),
        *("--data-dir", str(folder / "direct"), "--port", str(port), "--log-level", "warning"),
    )
    with run_server(command, port=port, folder=folder / "d", variables=_environment()) as server:
        yield server


@contextmanager
def _on_ray(folder: Path, variables: Mapping[str, str]) -> Iterator[Server]:
    port = free_port()
    command = (sys.executable, "-m", "benchmarks.ray_proxies", str(port), str(folder))
    variables = {**_environment(), **variables, "PYTHONPATH": str(ROOT)}
    with run_server(command, port=port, folder=folder, variables=variables) as server:
        _wait(lambda: httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=10).is_success)
        yield RayServer(server._pid, port)


def _wait(is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            if is_ready():
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError("the replica did not start")
        time.sleep(0.2)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _environment() -> Mapping[str, str]:
    given = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    return {**given, "RAY_AUTH_TOKEN": "0" * 64, "RAY_USAGE_STATS_ENABLED": "0"}


def _serve_on_ray(port: int, folder: Path) -> None:
    """Serve one replica until SIGTERM."""
    import ray
    from ray import serve

    from antiphon.entrypoints.ray_serve import build

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=str(folder / "r"),
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    data = {"data_dir": str(folder / "data"), "auth": "off", "log_level": "warning"}
    serve.run(build({"model": "scripted-chat", **data}), blocking=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _serve_on_ray(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.exit(main())
