"""Measure the cost of storing a stream: nothing, the response, or the response and its log.

    python -m benchmarks.persistence [--gate] [--store STORE] [--tick SECONDS]

One server, by default on a SQLite file, serves the three kinds in turn, A B C A B C …, several
times per round. Its CPU times are compared within each round. Tokens come as fast as possible, or
each after a tick; then each is a separate write. The thresholds are for the former. BENCH_ROUNDS
(5) and BENCH_REQUESTS (256 streams of each kind per round) set the length.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import load
from benchmarks.servers.server_process import Server, StartFailed, free_port, run_server

CONCURRENCY = 64
TOKENS = 256
TURNS_PER_ROUND = 4
MIN_DELTA_SHARE = 0.95

KINDS: Mapping[str, Mapping[str, Any]] = {
    "not stored": {"store": False},
    "stored": {"store": True},
    "background": {"store": True, "background": True},
}
MAX_STORED_RATIO = 1.15
"""The cost of a stored token, relative to one that is not stored."""
MAX_LOGGED_US = 2.0
"""The additional cost of a logged token, compared to one that is only stored."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a threshold is missed")
    parser.add_argument("--store", help="as for `antiphon serve`")
    parser.add_argument("--tick", type=float, default=0.0, help="seconds between tokens")
    args = parser.parse_args()
    rounds = int(os.environ.get("BENCH_ROUNDS", "5"))
    requests = int(os.environ.get("BENCH_REQUESTS", "256"))
    try:
        measured = measure(rounds, requests, store=args.store, tick_s=args.tick)
    except (StartFailed, load.LoadFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    for name in KINDS:
        costs = [each[name] for each in measured]
        span = f"[{min(costs):.2f} … {max(costs):.2f}]"
        print(f"CPU a token, {name:<12} {statistics.median(costs):6.2f} us {span}")
    if args.tick:
        return 0
    ratio = statistics.median(each["stored"] / each["not stored"] for each in measured)
    more = statistics.median(each["background"] - each["stored"] for each in measured)
    met = ratio <= MAX_STORED_RATIO, more <= MAX_LOGGED_US
    found = (
        ("stored, against not stored", f"{ratio:.3f} x", f"{MAX_STORED_RATIO:g}"),
        ("background, beyond stored", f"{more:+.2f} us", f"{MAX_LOGGED_US:g}"),
    )
    for (name, figure, bar), is_met in zip(found, met, strict=True):
        print(f"{name:<28} {figure:>9}  <= {bar:<5} {'ok' if is_met else 'MISSED'}")
    return 1 if args.gate and not all(met) else 0


def measure(
    rounds: int, requests: int, *, store: str | None = None, tick_s: float = 0.0
) -> list[Mapping[str, float]]:
    """Return the CPU time of a token in microseconds, by kind, of each round."""
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        port, folder = free_port(), Path(name)
        command = (
            *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "scripted-chat"),
            *("--store", store or f"sqlite:///{folder}/kept.db", "--data-dir", name),
            *("--port", str(port), "--log-level", "warning"),
        )
        given = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
        with run_server(command, port=port, folder=folder / "server", variables=given) as server:
            for kind in KINDS:
                _streamed(server, kind, CONCURRENCY, tick_s)
            return [_round(server, requests, tick_s) for _ in range(rounds)]


def _round(server: Server, requests: int, tick_s: float) -> Mapping[str, float]:
    part = max(1, requests // TURNS_PER_ROUND)
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(TURNS_PER_ROUND):
        for kind in KINDS:
            costs[kind].append(_streamed(server, kind, part, tick_s))
    return {kind: statistics.mean(each) for kind, each in costs.items()}


def _streamed(server: Server, kind: str, requests: int, tick_s: float) -> float:
    body = {
        "model": "scripted-chat",
        "input": f'@@script [{{"say":"word ","repeat":400,"tick":{tick_s:g}}}]',
        "max_output_tokens": TOKENS,
        "stream": True,
        **KINDS[kind],
    }
    request = load.request_of(server.port, body)
    before = server.cpu_s()
    outcome = load.run(server.port, request, requests=requests, concurrency=CONCURRENCY)
    tokens = requests * TOKENS
    if outcome.deltas < tokens * MIN_DELTA_SHARE:
        raise load.LoadFailed(f"{outcome.deltas} delta events for {tokens} tokens")
    return (server.cpu_s() - before) / tokens * 1e6


if __name__ == "__main__":
    sys.exit(main())
