"""Measure what a streamed token costs that comes from a model server over HTTP.

    python -m benchmarks.upstreams

Each engine that reads a model server is measured beside a proxy that passes the same server's bytes
on without a look at them. All run at the same time and get requests in turn; CPU times are compared
within each round.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks import load
from benchmarks.servers.server_process import Server, StartFailed, free_port, run_server

ROOT = Path(__file__).resolve().parent.parent
CONCURRENCY = 64
TOKENS = 256
WARM_UP_REQUESTS = 64
PASS_THROUGH = "pass-through"
ENGINES = ("chat", "vllm_http")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SETTINGS = """\
[[models]]
name = "chat"
engine = "chat"
url = "{url}/v1"
model = "bench"

[[models]]
name = "vllm_http"
engine = "vllm_http"
url = "{url}"
model = "{model}"
"""

Figures = Mapping[str, Sequence[float]]
"""By what was measured, the CPU time of a streamed token in microseconds, for each round."""


def measure(rounds: int, requests: int) -> Figures:
    """Measure in rounds of so many streams. Raises: StartFailed, LoadFailed."""
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        token_id = make_tokenizer(folder / "model")
        upstream = stack.enter_context(_upstream(folder, token_id))
        proxy = stack.enter_context(_pass_through(folder, upstream))
        server = stack.enter_context(_antiphon(folder, upstream))
        targets = {PASS_THROUGH: proxy, **dict.fromkeys(ENGINES, server)}
        for engine, target in targets.items():
            _streamed(target, engine, WARM_UP_REQUESTS)
        seen: dict[str, list[float]] = {engine: [] for engine in targets}
        for _ in range(rounds):
            for engine, target in targets.items():
                seen[engine].append(_streamed(target, engine, requests))
        return seen


def ratios(figures: Figures, engine: str) -> Sequence[float]:
    """Return how many times the proxy's cost an engine's is, round by round."""
    pairs = zip(figures[engine], figures[PASS_THROUGH], strict=True)
    return [ours / theirs for ours, theirs in pairs]


def describe(figures: Figures) -> Iterator[tuple[str, str]]:
    """Yield what was measured and its figures, for people."""
    proxy_us = statistics.median(figures[PASS_THROUGH])
    yield "CPU a streamed token, pass-through proxy", f"{proxy_us:.1f} us"
    for engine in ENGINES:
        times = ratios(figures, engine)
        yield (
            f"CPU a streamed token from a model server, {engine}",
            f"{statistics.median(figures[engine]):.1f} us, {statistics.median(times):.2f} "
            f"[{min(times):.2f} … {max(times):.2f}] x the proxy's",
        )


def make_tokenizer(folder: Path) -> int:
    """Write a small tokenizer with a chat template, and return the id of the token " word"."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["say word word word"] * 8, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    token_id = tokenizer.token_to_id("Ġword")
    assert token_id is not None
    return token_id


@contextmanager
def _upstream(folder: Path, token_id: int) -> Iterator[Server]:
    variables = {
        "BENCH_TOKENS": str(TOKENS),
        "BENCH_TOKEN_ID": str(token_id),
        "BENCH_MODEL_ROOT": str(folder / "model"),
    }
    with _uvicorn(
        "benchmarks.servers.upstream_server:app", folder / "upstream", variables
    ) as server:
        yield server


@contextmanager
def _pass_through(folder: Path, upstream: Server) -> Iterator[Server]:
    variables = {"BENCH_UPSTREAM": f"http://127.0.0.1:{upstream.port}"}
    with _uvicorn("benchmarks.servers.pass_through:app", folder / "proxy", variables) as server:
        yield server


@contextmanager
def _uvicorn(app: str, folder: Path, variables: Mapping[str, str]) -> Iterator[Server]:
    port = free_port()
    command = (
        *(sys.executable, "-m", "uvicorn", app, "--app-dir", str(ROOT)),
        *("--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"),
        *("--port", str(port)),
    )
    environment = {**_environment(), **variables}
    with run_server(command, port=port, folder=folder, variables=environment) as server:
        yield server


@contextmanager
def _antiphon(folder: Path, upstream: Server) -> Iterator[Server]:
    settings = folder / "antiphon.toml"
    url = f"http://127.0.0.1:{upstream.port}"
    settings.write_text(SETTINGS.format(url=url, model=folder / "model"), encoding="utf-8")
    port = free_port()
    command = (
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--config", str(settings)),
        *("--store", "memory", "--data-dir", str(folder / "data")),
        *("--port", str(port), "--log-level", "warning"),
    )
    with run_server(command, port=port, folder=folder / "data", variables=_environment()) as server:
        yield server


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}


def _streamed(server: Server, model: str, requests: int) -> float:
    """Return the CPU time of a streamed token in microseconds."""
    body = {
        "model": model,
        "input": "Say word.",
        "max_output_tokens": TOKENS,
        "stream": True,
        "store": False,
    }
    before = server.cpu_s()
    outcome = load.run(
        server.port,
        load.request_of(server.port, body),
        requests=requests,
        concurrency=CONCURRENCY,
    )
    tokens = requests * TOKENS
    if outcome.deltas != tokens:
        raise load.LoadFailed(f"{model}: {outcome.deltas} delta events for {tokens} tokens")
    return (server.cpu_s() - before) / tokens * 1e6


def main() -> int:
    rounds = int(os.environ.get("BENCH_ROUNDS", "5"))
    requests = int(os.environ.get("BENCH_REQUESTS", "512"))
    try:
        figures = measure(rounds, requests)
    except (StartFailed, load.LoadFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    for name, fact in describe(figures):
        print(f"{name:<56} {fact}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
