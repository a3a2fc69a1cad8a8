"""Two servers with containers on one store, which know each other's address, and two tenants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.faults.conftest import STORES
from tests.faults.support.replicas import START_S, Replica, free_port

KEYS = {"anna": "ak-anna-0123456789abcdef0123456789", "ben": "ak-ben-0123456789abcdef01234567"}


@contextmanager
def container_servers(
    folder: Path,
    *options: str,
    store: str = "postgres",
    limits: str = "",
    start_s: float = START_S,
) -> Iterator[list[Replica]]:
    """Serve from two processes until the block is left; `limits` are those of every key."""
    keys = "".join(
        f'[[keys]]\nid = "key_{name}"\nname = "{name}"\ntenant = "{name}"\n'
        f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n{limits}'
        for name, key in KEYS.items()
    )
    (folder / "keys.toml").write_text(keys)
    (folder / "keys.toml").chmod(0o600)
    started: list[Replica] = []
    with STORES[store](folder) as dsn:
        try:
            for number in range(2):
                own = folder / f"replica{number}"
                own.mkdir()
                port = free_port()
                started.append(
                    Replica(
                        own,
                        *("--store", dsn, "--data-dir", str(own), "--port", str(port)),
                        *("--seal-key-file", str(folder / "seal.key")),
                        *("--keys-file", str(folder / "keys.toml"), "--auth", "on"),
                        *("--advertise-url", f"http://127.0.0.1:{port}"),
                        *("--code-interpreter", "--shell", "--code-cgroup", "off"),
                        *options,
                    )
                )
                started[-1].start(start_s)
            yield started
        finally:
            for replica in started:
                if replica.process is not None and replica.process.poll() is None:
                    replica.kill()


def call(
    server: Replica, method: str, path: str, *, tenant: str = "anna", **options: Any
) -> httpx.Response:
    """Send one tenant's request to one server."""
    headers = {"authorization": f"Bearer {KEYS[tenant]}", **options.pop("headers", {})}
    return httpx.request(method, f"{server.api}/{path}", headers=headers, timeout=60, **options)


def new_container(server: Replica, *, tenant: str = "anna", name: str = "ours") -> str:
    answer = call(server, "POST", "containers", tenant=tenant, json={"name": name})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])
