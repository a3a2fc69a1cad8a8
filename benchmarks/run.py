"""Measure the cost of a streamed token, compared to a bare ASGI app that sends the same bytes.

    python -m benchmarks.run [--gate] [--out FOLDER]

Both servers run at the same time in their own processes, and get requests in turn: A B A B …,
several times per round. CPU times are compared, not wall-clock times, and the ratio is computed
within each round, so that a busy machine affects both figures alike.

BENCH_ROUNDS (5) and BENCH_REQUESTS (512 streams per round) set the length.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import chart, load
from benchmarks.servers.server_process import Server, StartFailed, free_port, run_server

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"

CONCURRENCY = 64
TOKENS = 256
SCRIPT = '@@script [{"say":"word ","repeat":400}]'
WARM_UP_REQUESTS = 64
TURNS_PER_ROUND = 4
MIN_DELTA_SHARE = 0.95  # per token; a format needs some tokens for markup that clients do not see
IDLE_REQUESTS = 40
# A request without a stream costs about as much as 60 streamed tokens: more of them are needed for
# the same number of clock ticks.
PLAIN_REQUESTS_FACTOR = 4


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round's figures of one server."""

    token_us: float
    plain_request_ms: float
    first_ms_p50: float
    first_ms_p99: float


@dataclass(kw_only=True)
class Result:
    """All figures of one run, for people and for comparisons over time."""

    server: list[Round] = field(default_factory=list)
    limit: list[Round] = field(default_factory=list)
    idle_first_ms_p50: float = 0.0
    idle_first_ms_p99: float = 0.0
    chat_rss_mb: float = 0.0
    harmony_rss_mb: float = 0.0
    harmony_token_us: float = 0.0

    @property
    def ratios(self) -> list[float]:
        return [a.token_us / b.token_us for a, b in zip(self.server, self.limit, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A limit that `--gate` checks."""

    name: str
    unit: str
    sign: str
    limit: float
    measured: Callable[[Result], float]

    @property
    def allowed(self) -> str:
        return f"{self.sign} {self.limit:g}"

    def is_met(self, result: Result) -> bool:
        return COMPARISONS[self.sign](self.measured(result), self.limit)


COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {"<": operator.lt, "<=": operator.le}


BARS = (
    Threshold(
        name="CPU a streamed token, times the limit's",
        unit="x",
        sign="<=",
        limit=2.5,
        measured=lambda result: statistics.median(result.ratios),
    ),
    Threshold(
        name=f"CPU a request of {TOKENS} tokens without a stream",
        unit="ms",
        sign="<=",
        limit=0.4,
        measured=lambda result: statistics.median(r.plain_request_ms for r in result.server),
    ),
    Threshold(
        name="peak memory, chat model",
        unit="MB",
        sign="<",
        limit=130.0,
        measured=lambda result: result.chat_rss_mb,
    ),
    Threshold(
        name="peak memory, Harmony model",
        unit="MB",
        sign="<",
        limit=200.0,
        measured=lambda result: result.harmony_rss_mb,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a threshold is missed")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of latest.json and .svg")
    options = parser.parse_args()
    if not Path("/proc/self/stat").exists():
        print("The benchmark reads CPU times from /proc, so it needs Linux.", file=sys.stderr)
        return 2
    rounds = int(os.environ.get("BENCH_ROUNDS", "5"))
    requests = int(os.environ.get("BENCH_REQUESTS", "512"))
    try:
        result = measure(rounds, requests)
    except (StartFailed, load.LoadFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    _print(result)
    _write(result, options.out, rounds=rounds, requests=requests)
    missed = [bar for bar in BARS if not bar.is_met(result)]
    return 1 if options.gate and missed else 0


def measure(rounds: int, requests: int) -> Result:
    """Run all servers and return their figures. Raises: StartFailed, LoadFailed."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        folder = Path(name)
        with antiphon("scripted-chat", folder) as server:
            frames = folder / "frames.sse"
            frames.write_bytes(load.record(server.port, _request(server, "scripted-chat")))
            with _limit(frames, folder) as limit:
                for each in (server, limit):
                    warm_up(each, "scripted-chat")
                for number in range(rounds):
                    ours, theirs = measure_round((server, limit), requests)
                    result.server.append(ours)
                    result.limit.append(theirs)
                    print(f"round {number + 1} of {rounds}: {result.ratios[-1]:.2f} x the limit")
            idle = load.run(
                server.port,
                _request(server, "scripted-chat"),
                requests=IDLE_REQUESTS,
                concurrency=1,
            )
            result.idle_first_ms_p50 = load.quantile(idle.first_s, 0.5) * 1e3
            result.idle_first_ms_p99 = load.quantile(idle.first_s, 0.99) * 1e3
            result.chat_rss_mb = server.peak_rss_mb()
        with antiphon("scripted-harmony", folder) as server:
            warm_up(server, "scripted-harmony")
            result.harmony_token_us = _streamed(server, "scripted-harmony", requests)[0]
            _plain(server, "scripted-harmony", requests)
            result.harmony_rss_mb = server.peak_rss_mb()
    return result


# --- the two servers ------------------------------------------------------------------------------


@contextmanager
def antiphon(model: str, folder: Path, *options: str) -> Iterator[Server]:
    """Run a server of this project with further options; its log level is `warning` by default."""
    port = free_port()
    command = (
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", model),
        *("--store", "memory", "--data-dir", str(folder / model)),
        *("--port", str(port), "--log-level", "warning", *options),
    )
    with run_server(command, port=port, folder=folder / model, variables=_environment()) as server:
        yield server


@contextmanager
def _limit(frames: Path, folder: Path) -> Iterator[Server]:
    port = free_port()
    command = (
        *(
            sys.executable,
            "-m",
            "uvicorn",
            "benchmarks.servers.baseline:app",
            "--app-dir",
            str(ROOT),
        ),
        *("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"),
        *("--port", str(port)),
    )
    variables = {**_environment(), "REPLAY_BODY": str(frames)}
    with run_server(command, port=port, folder=folder / "limit", variables=variables) as server:
        yield server


def _environment() -> Mapping[str, str]:
    """Return the environment without settings that would change the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}


# --- one measurement ------------------------------------------------------------------------------


def _request(server: Server, model: str, *, stream: bool = True) -> bytes:
    body = {
        "model": model,
        "input": SCRIPT,
        "max_output_tokens": TOKENS,
        "stream": stream,
        "store": False,
    }
    return load.request_of(server.port, body, key=server.key)


def warm_up(server: Server, model: str) -> None:
    for stream in (True, False):
        request = _request(server, model, stream=stream)
        load.run(server.port, request, requests=WARM_UP_REQUESTS, concurrency=CONCURRENCY)


def measure_round(servers: Sequence[Server], requests: int) -> list[Round]:
    """Measure the servers in turn, several times, so that disturbances affect all of them."""
    seen: dict[Server, list[tuple[float, float, load.Outcome]]] = {each: [] for each in servers}
    part = max(1, requests // TURNS_PER_ROUND)
    for turn in range(TURNS_PER_ROUND):
        # A B B A: who comes first finds other caches, and another clock, than who comes second.
        for server in servers if turn % 2 == 0 else reversed(servers):
            token_us, outcome = _streamed(server, "scripted-chat", part)
            seen[server].append((token_us, _plain(server, "scripted-chat", part), outcome))
    return [_summary(measured) for measured in seen.values()]


def _summary(measured: Sequence[tuple[float, float, load.Outcome]]) -> Round:
    first_s = [each for *_, outcome in measured for each in outcome.first_s]
    return Round(
        token_us=statistics.mean(token_us for token_us, *_ in measured),
        plain_request_ms=statistics.mean(plain_ms for _, plain_ms, _ in measured),
        first_ms_p50=load.quantile(first_s, 0.5) * 1e3,
        first_ms_p99=load.quantile(first_s, 0.99) * 1e3,
    )


def _streamed(server: Server, model: str, requests: int) -> tuple[float, load.Outcome]:
    """Return the CPU time per streamed token in microseconds, and the load's results."""
    before = server.cpu_s()
    request = _request(server, model)
    outcome = load.run(server.port, request, requests=requests, concurrency=CONCURRENCY)
    tokens = requests * TOKENS
    if outcome.deltas < tokens * MIN_DELTA_SHARE:
        # A server that joins deltas does less work, so its time per token would look too good.
        raise load.LoadFailed(f"{outcome.deltas} delta events for {tokens} tokens")
    return (server.cpu_s() - before) / tokens * 1e6, outcome


def _plain(server: Server, model: str, requests: int) -> float:
    """Return the CPU time of a request without a stream in milliseconds."""
    total = requests * PLAIN_REQUESTS_FACTOR
    before = server.cpu_s()
    request = _request(server, model, stream=False)
    load.run(server.port, request, requests=total, concurrency=CONCURRENCY)
    return (server.cpu_s() - before) / total * 1e3


# --- the report -----------------------------------------------------------------------------------


def _print(result: Result) -> None:
    print()
    for bar in BARS:
        verdict = "ok" if bar.is_met(result) else "MISSED"
        value = f"{bar.measured(result):>8.2f} {bar.unit:<3}"
        print(f"{bar.name:<48} {value} {bar.allowed:<8} {verdict}")
    token = [r.token_us for r in result.server]
    limit = [r.token_us for r in result.limit]
    plain = [r.plain_request_ms for r in result.limit]
    facts = (
        ("ratio, least and most of the rounds", spread(result.ratios, "x")),
        ("CPU a streamed token", f"{spread(token, 'us')} (limit {spread(limit, 'us')})"),
        ("the limit's CPU a request without a stream", spread(plain, "ms")),
        ("CPU a streamed token, Harmony model", f"{result.harmony_token_us:.1f} us"),
        (f"first event, {CONCURRENCY} streams at once", _first_event(result.server)),
        ("the limit's first event, likewise", _first_event(result.limit)),
        (
            "first event, one stream at a time",
            f"p50 {result.idle_first_ms_p50:.1f} ms, p99 {result.idle_first_ms_p99:.1f} ms",
        ),
    )
    for name, fact in facts:
        print(f"{name:<48} {fact}")


def spread(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f} … {max(values):.2f}] {unit}"


def _first_event(rounds: list[Round]) -> str:
    p50 = statistics.median(r.first_ms_p50 for r in rounds)
    p99 = statistics.median(r.first_ms_p99 for r in rounds)
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def _write(result: Result, folder: Path, **settings: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {**settings, "concurrency": CONCURRENCY, "tokens": TOKENS},
        "machine": _machine(),
        "bars": {bar.name: bar.measured(result) for bar in BARS},
        "ratios": result.ratios,
        **asdict(result),
    }
    (folder / "latest.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    drawn = chart.bar_chart(
        f"CPU a streamed token: {statistics.median(result.ratios):.2f} times the limit",
        "microseconds",
        [(a.token_us, b.token_us) for a, b in zip(result.server, result.limit, strict=True)],
        names=("antiphon", "bare ASGI app"),
    )
    (folder / "latest.svg").write_text(drawn, encoding="utf-8")
    print(f"\nwritten to {folder / 'latest.json'} and latest.svg")


def _machine() -> dict[str, Any]:
    packages = ("antiphon", "litestar", "msgspec", "uvicorn", "uvloop", "httptools")
    return {
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


if __name__ == "__main__":
    sys.exit(main())
