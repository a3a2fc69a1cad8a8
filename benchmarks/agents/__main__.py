"""Measure what the turns of an agent's session cost the server.

    python -m benchmarks.agents [--markup hermes|harmony] [--store STORE] [--sessions N]
                                [--turns N] [--tokens N] [--gate]

One server plays sessions in each of three ways: the whole conversation in each request, a chain of
responses, and a conversation. The tokenizer and the template are real (Qwen2.5-Coder's or
gpt-oss's); the engine costs nothing, and what it does cost is left out. CPU is of the server's
process tree. `known` is the share of the tokens of earlier prompts and answers that the next prompt
repeats, so that a prefix cache has them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct

from antiphon.adapters.engines.llama.model_folder import write_model_folder
from benchmarks.agents.sessions import MEASURED, TOKENS, TURNS, Session, make_session
from benchmarks.real import weights
from benchmarks.servers.server_process import Server, free_port, run_server

WAYS = ("replay", "chain", "conversation")
MAX_GROWTH = 1.5
MIN_KNOWN = 0.96


class Turn(Struct, frozen=True, kw_only=True):
    """One turn: the server's CPU time without the engine's, and the tokens of its prompt: all,
    those that an engine could know, and those that it does.
    """

    cpu_s: float
    prompt: int
    seen: int
    known: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--markup", choices=("hermes", "harmony"), default="hermes")
    parser.add_argument("--store", default="", help="as for `antiphon serve`")
    parser.add_argument("--way", choices=WAYS, action="append", help="more than once for several")
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a threshold is missed")
    args = parser.parse_args()
    met = True
    for way, turns in measure(args).items():
        early = statistics.median(_cpu_ms(turns, range(1, MEASURED + 1)))
        late = statistics.median(_cpu_ms(turns, range(args.turns - MEASURED, args.turns)))
        known = sum(turn.known for turn in turns) / sum(turn.seen for turn in turns)
        met &= late <= MAX_GROWTH * early and known >= MIN_KNOWN
        print(
            f"{way:<13} turns 2 to 6: {early:6.2f} ms, the last {MEASURED}: {late:6.2f} ms, "
            f"{late / early:5.2f} x; known {known:.1%}; {turns[-1].prompt:,} tokens in the end"
        )
    return 1 if args.gate and not met else 0


def _cpu_ms(turns: Sequence[Turn], which: range) -> list[float]:
    return [turns[number].cpu_s * 1e3 for number in which]


def measure(args: argparse.Namespace) -> Mapping[str, Sequence[Turn]]:
    """Return, by way, the median of each turn of all sessions."""
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        folder, port = Path(name), free_port()
        config = _write_config(folder, args.markup)
        command = (
            *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--config", str(config)),
            *("--store", args.store or f"sqlite:///{folder}/kept.db", "--data-dir", name),
            *("--port", str(port), "--log-level", "warning"),
        )
        root = str(Path(__file__).resolve().parents[2])
        given = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
        given["PYTHONPATH"] = os.pathsep.join((root, given.get("PYTHONPATH", "")))
        with run_server(command, port=port, folder=folder / "server", variables=given) as server:
            report, ways = folder / "report", args.way or WAYS
            found: dict[str, list[Sequence[Turn]]] = {way: [] for way in ways}
            for number in range(args.sessions + 1):  # the first one is a warm-up
                for way in ways:
                    session = make_session(number, texts=way, turns=args.turns, tokens=args.tokens)
                    played = play(server, session, way, report)
                    if number:
                        found[way].append(played)
            print(f"peak memory of the server: {server.peak_rss_mb():.0f} MB")
        return {
            way: [_median(each) for each in zip(*all_, strict=True)] for way, all_ in found.items()
        }


def _median(turns: Sequence[Turn]) -> Turn:
    return Turn(
        cpu_s=statistics.median(turn.cpu_s for turn in turns),
        prompt=round(statistics.mean(turn.prompt for turn in turns)),
        seen=round(statistics.mean(turn.seen for turn in turns)),
        known=round(statistics.mean(turn.known for turn in turns)),
    )


def _write_config(folder: Path, markup: str) -> Path:
    table = {
        "name": "agent",
        "engine": "benchmarks.agents.engine:SessionEngine",
        "format": "harmony" if markup == "harmony" else "auto",
        "markup": markup,
        "report": str(folder / "report"),
    }
    if markup == "hermes":
        model = folder / "model"
        model.mkdir()
        write_model_folder(weights.fetch("qwen2.5-coder-0.5b"), model)
        table["model_folder"] = str(model)
    lines = [f'{key} = "{value}"' for key, value in table.items()]
    file = folder / "models.toml"
    file.write_text("\n".join(["[[models]]", *lines, ""]))
    return file


def play(server: Server, session: Session, way: str, report: Path) -> Sequence[Turn]:
    """Play a session, and return its turns."""
    turns: list[Turn] = []
    items: list[Mapping[str, Any]] = [{"role": "user", "content": session.task}]
    given: dict[str, Any] = {}
    seen = 0
    json_type = {"content-type": "application/json"}
    url = f"http://127.0.0.1:{server.port}/v1"
    with httpx.Client(base_url=url, headers=json_type, timeout=120.0) as client:
        if way == "conversation":
            made = client.post("/conversations", json={}).raise_for_status().json()
            given["conversation"] = made["id"]
        for result in session.results:
            body = {
                "model": "agent",
                "instructions": session.instructions,
                "tools": session.tools,
                "input": items,
                "store": way != "replay",
                **given,
            }
            content = json.dumps(body)
            before = server.cpu_s()
            answer = client.post("/responses", content=content)
            cpu_s = server.cpu_s() - before
            if answer.is_error:
                raise SystemExit(f"{answer.status_code}: {answer.text[:2000]}")
            made = answer.json()
            *_, prompt, known, engine_s = report.read_text().split()
            turns.append(
                Turn(
                    cpu_s=cpu_s - float(engine_s),
                    prompt=int(prompt),
                    seen=seen,
                    known=int(known),
                )
            )
            seen = int(prompt) + made["usage"]["output_tokens"]
            call = made["output"][-1]
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": result}
            items = [*items, *made["output"], output] if way == "replay" else [output]
            if way == "chain":
                given["previous_response_id"] = made["id"]
    return turns


if __name__ == "__main__":
    sys.exit(main())
