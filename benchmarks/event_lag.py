"""Measure how much later than the server that runs a response another server shows its events.

    python -m benchmarks.event_lag [STORE …]

STORE is a value of `--store`; the default is a SQLite file. Two servers share it. The first runs
RUNS background responses at the same time, with a token every TICK_S; clients read them from both.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks import load
from benchmarks.servers.server_process import Server, free_port, run_server

RUNS = 8
TOKENS = 250
TICK_S = 0.02
SCRIPT = f'@@script [{{"say":"word ","repeat":{TOKENS},"tick":{TICK_S}}}]'
LIMIT_S = 120.0


async def measure_lags(first: Server, second: Server) -> list[float]:
    """Return how many seconds later each event was on the second server."""
    async with httpx.AsyncClient(timeout=LIMIT_S) as client:
        each = await asyncio.gather(*(_lags(client, first, second) for _ in range(RUNS)))
    return [lag for run in each for lag in run]


async def _lags(client: httpx.AsyncClient, first: Server, second: Server) -> list[float]:
    body = {"model": "scripted-chat", "input": SCRIPT, "background": True}
    begun = await client.post(f"{_api(first)}/responses", json=body)
    name = begun.raise_for_status().json()["id"]
    here, there = await asyncio.gather(_seen(client, first, name), _seen(client, second, name))
    if here.keys() != there.keys():
        raise load.LoadFailed("the two servers did not show the same events")
    return [there[number] - here[number] for number in here]


async def _seen(client: httpx.AsyncClient, server: Server, name: str) -> Mapping[int, float]:
    """Return when each event arrived, by its number; not those that were there before."""
    seen: dict[int, float] = {}
    url = f"{_api(server)}/responses/{name}?stream=true"
    async with client.stream("GET", url) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                number = json.loads(line.removeprefix("data: "))["sequence_number"]
                seen[number] = time.perf_counter()
    return {number: at for number, at in seen.items() if number > TOKENS / 10}


def _api(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}/v1"


@contextmanager
def _server(store: str, folder: Path) -> Iterator[Server]:
    port = free_port()
    command = (
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "scripted-chat"),
        *("--store", store, "--data-dir", str(folder.parent / "shared")),
        *("--port", str(port), "--log-level", "warning"),
    )
    given = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    with run_server(command, port=port, folder=folder, variables=given) as server:
        yield server


def main(stores: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as name:
        folder = Path(name)
        for store in stores or [f"sqlite:///{folder}/lag.db"]:
            with _server(store, folder / "a") as first, _server(store, folder / "b") as second:
                found = asyncio.run(measure_lags(first, second))
            shown = [f"{load.quantile(found, share) * 1e3:.0f}" for share in (0.5, 0.99, 1.0)]
            kind = store.partition(":")[0]
            print(f"{kind:<10} lag p50 {shown[0]}, p99 {shown[1]}, most {shown[2]} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
