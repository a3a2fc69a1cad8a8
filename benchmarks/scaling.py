"""Predict how far servers go, and compare the prediction with real runs where both can be had.

    python -m benchmarks.scaling            # measure, predict the same sizes, print both
    python -m benchmarks.scaling --table    # only the predictions, from the constants below

A server is one event loop on one core. The simulation has its iterations: each event that is ready
in one costs `event_us`. After a sleep, the caches are cold, and the iteration costs up to `wake_us`
more: the longer the sleep, the more. So an event costs less where there are more streams. Two real
sizes give these two constants, and the other sizes are predicted from them.

The writes of a background response follow from the rule of its journal: one write at a time, and a
new one at most every 10 ms. BENCH_ROUNDS (3) says how often each size is measured; they take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

import uvloop

from antiphon.adapters.stores.postgres.store import PostgresStore
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import EventChunk, Store
from benchmarks import load
from benchmarks.chart import bar_chart
from benchmarks.servers.server_process import Server, StartFailed, free_port, run_server
from benchmarks.simulation import (
    CALIBRATED,
    GRID_S,
    TICK_S,
    TOKENS,
    calibrated,
    simulate_core,
    simulate_journal,
    streams_of_a_core,
)
from benchmarks.stores import lease, stored

PREDICTED = (24, 64, 128, 256)
JOURNAL_TICKS_S = (0.002, 0.005, 0.02, 0.05)
JOURNAL_STREAMS = 4
MEMORY_STREAMS = (16, 256)
FIXED_FILES = 64
"""Open files of a server without clients: its store, its log, its sockets."""


class Constant(NamedTuple):
    """A figure of the prediction, and the command that measures it."""

    value: float
    unit: str
    command: str


CONSTANTS: Mapping[str, Constant] = {
    "wake_us": Constant(126.0, "µs", "python -m benchmarks.scaling"),
    "event_us": Constant(42.0, "µs", "python -m benchmarks.scaling"),
    "request_us": Constant(1250.0, "µs", "python -m benchmarks.scaling"),
    "stream_kb": Constant(53.0, "kB", "python -m benchmarks.scaling"),
    "server_mb": Constant(93.0, "MB", "python -m benchmarks.run"),
    "chunks_s": Constant(5000.0, "writes a second", "python -m benchmarks.scaling --postgres URL"),
    "response_tokens": Constant(500.0, "tokens", "an assumption: an answer of usual length"),
}
"""Medians of runs on two cores that other programs used too; a quiet machine needs about half."""


# --- real runs ------------------------------------------------------------------------------------


def command_of(port: int, folder: str, *, store: str = "memory") -> Sequence[str]:
    return (
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "scripted-chat"),
        *("--store", store, "--data-dir", folder, "--port", str(port), "--log-level", "warning"),
        *("--max-runs", "2000", "--metrics"),
    )


def streamed(server: Server, streams: int, tick_s: float, *, background: bool = False) -> float:
    """Let so many streams run at the same time; return the CPU of each token in microseconds."""
    script = f'@@script [{{"say":"word ","repeat":{TOKENS},"tick":{tick_s:g}}}]'
    asked = {"model": "scripted-chat", "input": script, "stream": True, "background": background}
    request = load.request_of(server.port, {**asked, "store": background})
    before = server.cpu_s()
    load.run(server.port, request, requests=streams, concurrency=streams)
    return (server.cpu_s() - before) / (streams * TOKENS) * 1e6


def appends(server: Server) -> tuple[float, float]:
    """Return how often events were appended to the store so far, and the seconds that this took."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    pattern = r'antiphon_store_operation_duration_seconds_{}{{operation="append",[^}}]*}} (\S+)'
    found = (re.findall(pattern.format(kind), text) for kind in ("count", "sum"))
    count, seconds = (sum(map(float, values)) for values in found)
    return count, seconds


class Writes(NamedTuple):
    """The writes of a token, and the seconds of a write."""

    each_token: float
    write_s: float


class Measured(NamedTuple):
    """What real runs gave."""

    token_us: Mapping[int, float]
    request_us: float
    stream_kb: float
    writes: Mapping[float, Writes]
    """For each time between tokens that was asked for."""


def measure(rounds: int) -> Measured:
    """Raises: StartFailed, load.LoadFailed."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        port, folder = free_port(), Path(name)
        command = command_of(port, name)
        with run_server(command, port=port, folder=folder / "memory", variables=given) as server:
            token_us, request_us = _costs(server, rounds)
        with run_server(command, port=port, folder=folder / "streams", variables=given) as server:
            stream_kb = _memory_of_a_stream(server)
        command = command_of(port, name, store=f"sqlite:///{name}/kept.db")
        with run_server(command, port=port, folder=folder / "kept", variables=given) as server:
            writes = {tick_s: _writes(server, tick_s) for tick_s in JOURNAL_TICKS_S}
    return Measured(token_us, request_us, stream_kb, writes)


def _costs(server: Server, rounds: int) -> tuple[Mapping[int, float], float]:
    """Return the CPU of a token for each number of streams, and that of a request."""
    requests = 400
    body = {"model": "scripted-chat", "input": "hi", "stream": True, "store": False}
    request = load.request_of(server.port, body)
    sizes: dict[int, list[float]] = {size: [] for size in sorted((*CALIBRATED, *PREDICTED))}
    asked: list[float] = []
    streamed(server, 16, 0.0)
    for _ in range(rounds):
        before = server.cpu_s()
        load.run(server.port, request, requests=requests, concurrency=8)
        asked.append((server.cpu_s() - before) / requests * 1e6)
        for size, costs in sizes.items():
            costs.append(streamed(server, size, TICK_S))
    request_us = statistics.median(asked)
    tokens = {size: statistics.median(costs) for size, costs in sizes.items()}
    return {size: cost - request_us / TOKENS for size, cost in tokens.items()}, request_us


def _memory_of_a_stream(server: Server) -> float:
    few, many = MEMORY_STREAMS
    peaks = []
    for streams in (few, many):
        streamed(server, streams, TICK_S)
        peaks.append(server.peak_rss_mb())
    return (peaks[1] - peaks[0]) * 1e3 / (many - few)


def _writes(server: Server, tick_s: float) -> Writes:
    count, seconds = appends(server)
    streamed(server, JOURNAL_STREAMS, tick_s, background=True)
    more, longer = appends(server)
    made = more - count
    return Writes(made / (JOURNAL_STREAMS * TOKENS), (longer - seconds) / made)


async def chunks_a_second(store: Store, *, runs: int = 256, seconds: float = 3.0) -> float:
    """Return how many writes of one event each a store takes from runs of one server."""
    await store.start()
    written = 0
    tag = time.time_ns()

    async def stream(number: int, until: float) -> None:
        nonlocal written
        await store.create_response("tenant", stored(number))
        first = 1
        while time.monotonic() < until:
            await store.append_events(
                lease(number), EventChunk(first=first, count=1, body=b"x" * 250)
            )
            first += 1
            written += 1

    until = time.monotonic() + seconds
    await asyncio.gather(*[stream(tag + number, until) for number in range(runs)])
    await store.aclose()
    return written / seconds


# --- what is printed ------------------------------------------------------------------------------


def side_by_side(found: Measured, wake_us: float, event_us: float) -> str:
    """Return predictions and measurements in one table."""
    lines = [f"{'':34} {'predicted':>10} {'measured':>10} {'error':>7}"]
    for size, cost in found.token_us.items():
        predicted = simulate_core(size, wake_us=wake_us, event_us=event_us).event_us
        note = " (calibrates)" if size in CALIBRATED else ""
        lines.append(_row(f"{size} streams, µs a token{note}", predicted, cost))
    for tick_s, writes in found.writes.items():
        predicted = simulate_journal(tick_s + GRID_S, write_s=writes.write_s)
        name = f"a token each {tick_s * 1e3:g} ms, writes a token"
        lines.append(_row(name, predicted, writes.each_token))
    return "\n".join(lines)


def _row(name: str, predicted: float, measured: float) -> str:
    error = (predicted - measured) / measured
    return f"{name:34} {predicted:10.2f} {measured:10.2f} {error:+6.0%}"


def outlook(streams: int) -> str:
    """Return what so many streams need."""
    known = {name: constant.value for name, constant in CONSTANTS.items()}
    costs = {"wake_us": known["wake_us"], "event_us": known["event_us"]}
    costs["event_us"] += known["request_us"] / known["response_tokens"]
    tokens_s = streams / TICK_S
    servers = ceil(streams / streams_of_a_core(**costs))
    here = ceil(streams / servers)
    memory_mb = known["server_mb"] + here * known["stream_kb"] / 1e3
    stored_s = 2 * tokens_s / known["response_tokens"]
    logged_s = tokens_s * simulate_journal(TICK_S, write_s=0.002)
    return (
        f"{streams:>9,} streams, {tokens_s:,.0f} tokens/s: {servers:,} servers of {here:,}, "
        f"{here + FIXED_FILES:,} files and {memory_mb:,.0f} MB each; "
        f"the store: {stored_s:,.0f} writes/s, or {logged_s:,.0f} in the background "
        f"({logged_s / known['chunks_s']:,.1f} stores)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--postgres", help="a PostgreSQL to measure too, postgresql://…")
    parser.add_argument("--chart", type=Path, help="where to write the chart, as SVG")
    args = parser.parse_args()
    if not args.table:
        try:
            found = measure(int(os.environ.get("BENCH_ROUNDS", "3")))
        except (StartFailed, load.LoadFailed) as error:
            print(f"benchmark: {error}", file=sys.stderr)
            return 2
        wake_us, event_us = calibrated(found.token_us)
        print(f"wake_us {wake_us:.1f}, event_us {event_us:.1f}, request_us {found.request_us:.0f}")
        print(f"stream_kb {found.stream_kb:.0f}")
        print(side_by_side(found, wake_us, event_us))
        if args.chart is not None:
            args.chart.write_text(_chart(found, wake_us, event_us), encoding="utf-8")
        _print_stores(args.postgres)
    for streams in (1_000, 100_000, 1_000_000):
        print(outlook(streams))
    return 0


def _print_stores(postgres: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        stores: dict[str, Store] = {"sqlite": SqliteStore(Path(name) / "kept.db")}
        if postgres is not None:
            stores["postgresql"] = PostgresStore(postgres, schema="antiphon_scaling")
        for kind, store in stores.items():
            print(f"chunks_s, {kind}: {uvloop.run(chunks_a_second(store)):,.0f}")


def _chart(found: Measured, wake_us: float, event_us: float) -> str:
    rows = [
        (simulate_core(size, wake_us=wake_us, event_us=event_us).event_us, cost)
        for size, cost in found.token_us.items()
    ]
    return bar_chart(
        "CPU of a token, one every 50 ms",
        "µs",
        rows,
        names=("predicted", "measured"),
        groups=[f"{size} streams" for size in found.token_us],
    )


if __name__ == "__main__":
    sys.exit(main())
