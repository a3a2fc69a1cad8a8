"""Measure what options of a server cost: logs, metrics, traces, keys and limits.

    python -m benchmarks.options [VARIANT ...]

Each variant runs beside a server without options, in its own process, and both get requests in
turn. The ratios of their CPU times are computed within each round; those of `nothing` show by how
much equal servers differ. BENCH_ROUNDS (5) and BENCH_REQUESTS (512 streams per round) set the
length. It fails if `everything`, logs, metrics and traces together, costs more than 5 % of a
streamed token or 25 % of a request of 256 tokens without a stream.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy, parse_limits
from benchmarks.load import LoadFailed
from benchmarks.run import antiphon, measure_round, spread, warm_up
from benchmarks.servers.server_process import Server, StartFailed

MODEL = "scripted-chat"
LOGS = ("--log-level", "info", "--log-format", "json")
METRICS = ("--metrics",)
TRACES = ("--otlp-endpoint", "COLLECTOR")
KEYS = ("--auth", "on", "--keys-file", "FILE")
LIMITS = ("requests/min=1M", "requests/day=1G", "tokens/min=1G", "tokens/day=1G", "runs=1000")
VARIANTS: Mapping[str, Sequence[str]] = {
    "nothing": (),
    "logs": LOGS,
    "metrics": METRICS,
    "traces": TRACES,
    "everything": (*LOGS, *METRICS, *TRACES, "--keep-traces", "failed"),
    "kept traces": ("--keep-traces", "all"),
    "keys": KEYS,
    "limits": KEYS,
}
MAX_RATIOS: Mapping[str, float] = {"token": 1.05, "plain request": 1.25}
"""What `everything` may cost, of a streamed token and of a request without a stream."""


def main() -> int:
    chosen = _arguments().variants or list(VARIANTS)
    rounds = int(os.environ.get("BENCH_ROUNDS", "5"))
    requests = int(os.environ.get("BENCH_REQUESTS", "512"))
    missed = False
    try:
        with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
            for name in chosen:
                measured = _measure(name, Path(folder) / name.replace(" ", "-"), rounds, requests)
                missed |= _report(name, measured)
    except (StartFailed, LoadFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return int(missed)


def _arguments() -> argparse.Namespace:
    summary, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.options",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "variants", nargs="*", choices=[*VARIANTS, []], metavar="VARIANT", help=", ".join(VARIANTS)
    )
    return parser.parse_args()


def _measure(name: str, folder: Path, rounds: int, requests: int) -> Mapping[str, list[float]]:
    """Return the ratios of one variant, one of each round, by what they are of."""
    measured: dict[str, list[float]] = {"token": [], "plain request": []}
    folder.mkdir(parents=True)
    file = folder / "keys.toml"
    key = _write_key(file, *(LIMITS if name == "limits" else ()))
    with _collector() as url:
        values = {"COLLECTOR": url, "FILE": str(file)}
        options = [values.get(option, option) for option in VARIANTS[name]]
        with antiphon(MODEL, folder / "off") as off, antiphon(MODEL, folder / "on", *options) as on:
            on.key = key if "--auth" in options else ""
            servers: Sequence[Server] = (on, off)
            for each in servers:
                warm_up(each, MODEL)
            for _ in range(rounds):
                ours, bare = measure_round(servers, requests)
                measured["token"].append(ours.token_us / bare.token_us)
                measured["plain request"].append(ours.plain_request_ms / bare.plain_request_ms)
    return measured


def _write_key(file: Path, *limits: str) -> str:
    """Add a key with these limits to a file, and return it."""
    policy = KeyPolicy(limits=parse_limits(limits))
    key, record = create_key("bench", "bench", new_id=new_id, now=time.time, policy=policy)
    append(file, record)
    return key


def _report(name: str, measured: Mapping[str, list[float]]) -> bool:
    """Print a variant's ratios; return whether they miss their bar."""
    missed = False
    parts = [f"{name:<12}"]
    for of, ratios in measured.items():
        parts.append(f"{of} {spread(ratios, 'x')}")
        if name == "everything":
            is_too_high = statistics.median(ratios) > MAX_RATIOS[of]
            parts.append("MISSED" if is_too_high else "ok")
            missed |= is_too_high
    print("  ".join(parts), flush=True)
    return missed


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
