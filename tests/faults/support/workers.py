"""Servers with several workers, and clients that know which worker they speak to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
from tests.faults.support.replicas import Replica, replicas, wait_for
from tests.support.processes import is_process_alive

WORKERS = 3
ANEW = httpx.Limits(max_keepalive_connections=0)
"""A new connection for each request."""
START_S = 120.0
"""One process after another imports the server, on a machine however busy."""


@contextmanager
def serving_with_workers(folder: Path, *options: str, count: int = WORKERS) -> Iterator[Replica]:
    """Serve with so many workers until the block is left; then none of its processes is left."""
    given = ("--workers", str(count), "--log-level", "debug", "--loop-watchdog-ms", "0", *options)
    with replicas(folder, *given, count=1, start_s=START_S) as [server]:
        try:
            yield server
        finally:
            if server.process is not None and server.process.poll() is None:
                server.stop(limit_s=60)
            wait_for(lambda: not any(map(is_process_alive, pids_of(server).values())) or None)


@contextmanager
def serving_with_settings(
    folder: Path, *, count: int, config: Path | None = None, **settings: Any
) -> Iterator[Replica]:
    """As `serving_with_workers`, with settings as in a file, and those of the file `config`."""
    whole = folder / "workers.toml"
    # Paths become strings; all else is written alike in TOML and in JSON.
    lines = (f"{name} = {json.dumps(value, default=str)}" for name, value in settings.items())
    given = "" if config is None else dedent(config.read_text())
    whole.write_text("\n".join([*lines, given]))
    with serving_with_workers(folder, "--config", str(whole), count=count) as server:
        yield server


def connecting_anew(client: httpx.Client) -> httpx.Client:
    """Return a client with a new connection for each request: it may be to any worker."""
    return httpx.Client(base_url=client.base_url, timeout=client.timeout, limits=ANEW)


def pids_of(server: Replica) -> Mapping[str, int]:
    """Return the processes of all workers that were ever ready, by the ids of their servers."""
    found = re.findall(r"is ready(?: again)?: process (\d+), server (\w+)", server.log())
    return {owner: int(pid) for pid, owner in found}


def pid_of_the_worker_that_made(server: Replica, response_id: str) -> int:
    """Return the process that answered the request for a response."""

    def find() -> int | None:
        made = re.search(rf"response={response_id} \[worker=(\d+) ", server.log())
        if made is None:
            return None
        lives = re.findall(rf"worker {made[1]} is ready(?: again)?: process (\d+),", server.log())
        return int(lives[-1]) if lives else None  # it may log before it is announced

    return wait_for(find)


@contextmanager
def a_client_of_each(server: Replica, count: int = WORKERS) -> Iterator[Mapping[str, httpx.Client]]:
    """Yield a client for each worker, by the id of its server.

    Each has one connection. On a busy machine, one that waits for five seconds is closed, and the
    next may be to another worker.
    """
    limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
    with ExitStack() as stack:
        clients: dict[str, httpx.Client] = {}

        def connect() -> bool | None:
            client = httpx.Client(base_url=server.api, timeout=30, limits=limits)
            stack.enter_context(client)
            state = client.get(f"{server.url}/console/state").json()
            clients.setdefault(state["server"]["id"], client)
            return len(clients) == count or None

        wait_for(connect, limit_s=60)
        yield clients
