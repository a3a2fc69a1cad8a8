"""Measure what it costs to look into a server: the same requests with logs, metrics and traces.

    python -m benchmarks.observability [VARIANT ...]

Each variant runs beside a server with everything off, in its own process, and both get requests in
turn. The ratios of their CPU times are computed within each round. BENCH_ROUNDS (5) and
BENCH_REQUESTS (512 streams per round) set the length.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.load import LoadFailed
from benchmarks.run import antiphon, measure_round, spread, warm_up
from benchmarks.server_process import Server, StartFailed

MODEL = "scripted-chat"
LOGS = ("--log-level", "info", "--log-format", "json")
METRICS = ("--metrics",)
TRACES = ("--otlp-endpoint", "COLLECTOR")
VARIANTS: Mapping[str, Sequence[str]] = {
    "logs": LOGS,
    "metrics": METRICS,
    "traces": TRACES,
    "everything": (*LOGS, *METRICS, *TRACES, "--keep-traces", "failed"),
    "kept traces": ("--keep-traces", "all"),
}
MAX_RATIO = 1.05
"""What `everything` may cost, of a streamed token."""


def main() -> int:
    rounds = int(os.environ.get("BENCH_ROUNDS", "5"))
    requests = int(os.environ.get("BENCH_REQUESTS", "512"))
    chosen = sys.argv[1:] or list(VARIANTS)
    try:
        with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
            for name in chosen:
                print(_measure(name, Path(folder) / name.replace(" ", "-"), rounds, requests))
    except (StartFailed, LoadFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(name: str, folder: Path, rounds: int, requests: int) -> str:
    """Return a line with the ratios of one variant."""
    streamed, plain = [], []
    with _collector() as url:
        options = [url if option == "COLLECTOR" else option for option in VARIANTS[name]]
        with antiphon(MODEL, folder / "off") as off, antiphon(MODEL, folder / "on", *options) as on:
            servers: Sequence[Server] = (on, off)
            for each in servers:
                warm_up(each, MODEL)
            for _ in range(rounds):
                ours, bare = measure_round(servers, requests)
                streamed.append(ours.token_us / bare.token_us)
                plain.append(ours.plain_request_ms / bare.plain_request_ms)
    verdict = ""
    if name == "everything":
        verdict = "ok" if statistics.median(streamed) <= MAX_RATIO else "MISSED"
    return f"{name:<12} token {spread(streamed, 'x')}  plain request {spread(plain, 'x')} {verdict}"


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector that takes every export, in this process; yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Taking(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
