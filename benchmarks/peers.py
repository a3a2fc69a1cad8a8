"""Measure the server beside others: the bare ASGI app, a Rust gateway, and vLLM's serving layer.

    python -m benchmarks.peers [--reference FILE] [--save FILE]

All servers run at the same time and take turns (A B C A B C …) in each round. Each runs on one
core, the client on another. What is not installed is left out: SMG, a gateway that only passes
requests on (`smg`, or its path in BENCH_SMG), and vLLM over an engine that computes nothing
(`.venv-vllm`, which `make test-vllm` makes).

With `--reference`, exit with 1 if a ratio is worse than in any round of that file.
BENCH_ROUNDS (5) is the number of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import chart, load
from benchmarks.run import RESULTS, ROOT, SCRIPT, TOKENS, spread
from benchmarks.servers.server_process import Server, StartFailed, free_port, run_server

TOKENS_PER_S = 50
WARM_UP_REQUESTS = 16
OURS, LIMIT, SMG, VLLM = "Antiphon", "bare ASGI app", "SMG", "vLLM"
REPLAY = "replay"
"""The model's name at servers whose answers are replayed or repeated."""
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
TINY_MODELS = ROOT / "tests" / "vllm" / "tiny_models.py"
SERVER_CORE, CLIENT_CORE = "0", "1"


class Case(NamedTuple):
    """What is measured: so many requests, `concurrency` at a time."""

    name: str
    concurrency: int
    requests: int
    stream: bool = True
    paced: bool = False
    model: str = "scripted-chat"
    peers: Sequence[str] = (OURS, LIMIT, SMG, VLLM)

    @property
    def unit(self) -> str:
        return "us a token" if self.stream else "ms a request"


CASES = (
    Case("64 streams", 64, 192),
    Case("256 streams", 256, 768, peers=(OURS, LIMIT, SMG)),
    Case("64 streams, Harmony", 64, 192, model="scripted-harmony", peers=(OURS, LIMIT)),
    Case("64 streams, 50 tokens a second", 64, 64, paced=True, peers=(OURS, LIMIT, SMG)),
    Case("128 streams, 50 tokens a second", 128, 128, paced=True, peers=(OURS, LIMIT, SMG)),
    Case("16 at a time, without a stream", 16, 400, stream=False),
    Case("64 at a time, without a stream", 64, 400, stream=False),
)


class Sample(NamedTuple):
    """One measurement: CPU in the case's unit, and the median time to the first byte."""

    cpu: float
    first_ms: float


Samples = Mapping[str, Mapping[str, list[Sample]]]
"""By case and peer, a sample of each round."""


class Servers(NamedTuple):
    """The running servers, by their names; paced ones write 50 tokens a second in each stream."""

    unpaced: Mapping[str, Server]
    paced: Mapping[str, Server]

    def of(self, case: Case) -> Mapping[str, Server]:
        running = self.paced if case.paced else self.unpaced
        return {name: server for name, server in running.items() if name in case.peers}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--reference", type=Path, help="figures that must not get worse")
    parser.add_argument("--save", type=Path, default=RESULTS / "peers.json")
    options = parser.parse_args()
    if not shutil.which("taskset") or (os.cpu_count() or 1) < 2:
        print("The benchmark needs Linux with taskset, and two cores.", file=sys.stderr)
        return 2
    try:
        samples, memory_mb = measure(int(os.environ.get("BENCH_ROUNDS", "5")))
    except (StartFailed, load.LoadFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print("\n" + "\n".join(table(samples, memory_mb)))
    _write(samples, memory_mb, options.save)
    worse = _worse(samples, options.reference) if options.reference else []
    print("\n".join(worse))
    return 1 if worse else 0


def measure(rounds: int) -> tuple[Samples, Mapping[str, float]]:
    """Return the samples, and each server's peak memory. Raises: StartFailed, LoadFailed."""
    os.sched_setaffinity(0, {int(CLIENT_CORE)})
    samples: dict[str, dict[str, list[Sample]]] = {case.name: {} for case in CASES}
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name, ExitStack() as stack:
        servers = _start_servers(Path(name), stack)
        for number in range(rounds):
            for case in CASES:
                for peer, server in servers.of(case).items():
                    sample = _sample(case, peer, server)
                    samples[case.name].setdefault(peer, []).append(sample)
            print(f"round {number + 1} of {rounds} is done", flush=True)
        return samples, {peer: server.peak_rss_mb() for peer, server in servers.unpaced.items()}


def ratios(samples: Mapping[str, Sequence[Sample]], peer: str) -> list[float]:
    """Return how many times the bare app's CPU a peer took, in each round."""
    return [a.cpu / b.cpu for a, b in zip(samples[peer], samples[LIMIT], strict=True)]


def table(samples: Samples, memory_mb: Mapping[str, float]) -> Iterator[str]:
    """Yield the lines of a report; medians, with the least and the most of the rounds."""
    for case in CASES:
        for peer, measured in samples[case.name].items():
            cpu = spread([each.cpu for each in measured], case.unit)
            ratio = spread(ratios(samples[case.name], peer), "x") if case.stream else ""
            first_ms = statistics.median(each.first_ms for each in measured)
            yield f"{case.name:<32} {peer:<14} {cpu:<38} {ratio:<26} first byte {first_ms:.1f} ms"
    for peer, peak_mb in memory_mb.items():
        yield f"{'peak memory':<32} {peer:<14} {peak_mb:.0f} MB"


# --- the servers ----------------------------------------------------------------------------------


def _start_servers(folder: Path, stack: ExitStack) -> Servers:
    enter = stack.enter_context
    ours = enter(_antiphon(folder / "ours"))
    frames = folder / "frames.sse"
    frames.write_bytes(load.record(ours.port, _request(CASES[0], OURS, ours)))
    unpaced = {OURS: ours, LIMIT: enter(_replay(folder / "limit", frames))}
    paced = {
        OURS: enter(_antiphon(folder / "paced", "--scripted-tokens-per-s", str(TOKENS_PER_S))),
        LIMIT: enter(_replay(folder / "paced-limit", frames, tokens_per_s=TOKENS_PER_S)),
    }
    if smg := os.environ.get("BENCH_SMG") or shutil.which("smg"):
        unpaced[SMG] = enter(_smg(smg, folder / "smg", frames))
        paced[SMG] = enter(_smg(smg, folder / "paced-smg", frames, tokens_per_s=TOKENS_PER_S))
    if VLLM_PYTHON.exists():
        unpaced[VLLM] = enter(_vllm(folder / "vllm"))
    return Servers(unpaced, paced)


@contextmanager
def _on_core(
    core: str, folder: Path, port: int, command: Sequence[str], **variables: str
) -> Iterator[Server]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")}
    with run_server(
        ("taskset", "-c", core, *command),
        port=port,
        folder=folder,
        variables={**environment, **variables},
    ) as server:
        yield server


@contextmanager
def _antiphon(folder: Path, *options: str) -> Iterator[Server]:
    port = free_port()
    command = (
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--engine", "scripted"),
        *("--store", "memory", "--data-dir", str(folder / "data"), "--port", str(port), *options),
    )
    with _on_core(SERVER_CORE, folder, port, command) as server:
        yield server


@contextmanager
def _replay(
    folder: Path, frames: Path, *, tokens_per_s: float = 0, core: str = SERVER_CORE
) -> Iterator[Server]:
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
    variables = {"REPLAY_BODY": str(frames), "REPLAY_TOKENS_PER_S": str(tokens_per_s)}
    with _on_core(core, folder, port, command, **variables) as server:
        yield server


@contextmanager
def _smg(smg: str, folder: Path, frames: Path, *, tokens_per_s: float = 0) -> Iterator[Server]:
    port = free_port()
    with _replay(folder / "up", frames, tokens_per_s=tokens_per_s, core=CLIENT_CORE) as upstream:
        command = (
            *(smg, "launch", "--backend", "openai", "--history-backend", "memory"),
            *("--worker-urls", f"http://127.0.0.1:{upstream.port}"),
            *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        )
        with _on_core(SERVER_CORE, folder, port, command) as server:
            yield server


@contextmanager
def _vllm(folder: Path) -> Iterator[Server]:
    models, port = folder / "models", free_port()
    subprocess.run([VLLM_PYTHON, TINY_MODELS, models], check=True, capture_output=True)
    command = (
        *(str(VLLM_PYTHON), str(ROOT / "benchmarks" / "servers" / "vllm_server.py")),
        *("--model", str(models / "chat"), "--served-model-name", REPLAY),
        *("--host", "127.0.0.1", "--port", str(port)),
    )
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with _on_core(SERVER_CORE, folder, port, command, **variables) as server:
        yield server


# --- one sample -----------------------------------------------------------------------------------


def _request(case: Case, peer: str, server: Server) -> bytes:
    body = {
        "model": case.model if peer == OURS else REPLAY,
        "input": SCRIPT,
        "max_output_tokens": TOKENS,
        "stream": case.stream,
        "store": False,
    }
    return load.request_of(server.port, body)


def _sample(case: Case, peer: str, server: Server) -> Sample:
    request = _request(case, peer, server)
    warm_up = 0 if case.paced else WARM_UP_REQUESTS
    if warm_up:
        load.run(server.port, request, requests=warm_up, concurrency=warm_up)
    before = server.cpu_s()
    outcome = load.run(server.port, request, requests=case.requests, concurrency=case.concurrency)
    cpu_s = (server.cpu_s() - before) / case.requests
    cpu = cpu_s / TOKENS * 1e6 if case.stream else cpu_s * 1e3
    return Sample(cpu, load.quantile(outcome.first_s, 0.5) * 1e3)


# --- what is kept ---------------------------------------------------------------------------------


def _write(samples: Samples, memory_mb: Mapping[str, float], file: Path) -> None:
    report: dict[str, Any] = {
        "cases": {
            name: {
                peer: {
                    "cpu": [each.cpu for each in measured],
                    "ratio": ratios(by_peer, peer),
                    "first_ms": [each.first_ms for each in measured],
                }
                for peer, measured in by_peer.items()
            }
            for name, by_peer in samples.items()
        },
        "memory_mb": memory_mb,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".svg").write_text(draw(report), encoding="utf-8")
    print(f"\nwritten to {file} and {file.with_suffix('.svg').name}")


def draw(report: Mapping[str, Any]) -> str:
    """Return a chart of the streams: the medians of all peers, as multiples of the bare app."""
    names = [case.name for case in CASES if case.stream and len(case.peers) > 2]
    peers = [peer for peer in (LIMIT, OURS, SMG) if peer in report["cases"][names[0]]]
    groups = [
        [statistics.median(report["cases"][name][peer]["ratio"]) for peer in peers]
        for name in names
    ]
    return chart.bar_chart(
        "CPU a streamed token", "times the bare ASGI app", groups, names=peers, groups=names
    )


def _worse(samples: Samples, reference: Path) -> list[str]:
    """Return a sentence for each ratio whose median is above all rounds of the reference."""
    known = json.loads(reference.read_text(encoding="utf-8"))["cases"]
    sentences = []
    for case in CASES:
        before = known.get(case.name, {}).get(OURS)
        if before is None:
            continue
        now = statistics.median(ratios(samples[case.name], OURS))
        if now > max(before["ratio"]):
            median = statistics.median(before["ratio"])
            sentences.append(f"{case.name}: {now:.2f} times the bare app, {median:.2f} before")
    return sentences


if __name__ == "__main__":
    sys.exit(main())
