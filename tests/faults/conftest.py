"""Stores that several servers share, of each kind."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.faults.support.replicas import wait_for

POSTGRES = os.environ.get("ANTIPHON_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder}/shared.db"


@contextmanager
def _postgres(_folder: Path) -> Iterator[str]:
    """Yield the address of a database of the test's own."""
    asyncpg = pytest.importorskip("asyncpg", reason="the extra postgres is not installed")
    name = f"antiphon_{secrets.token_hex(6)}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(POSTGRES, timeout=5)
        await connection.execute(statement)
        await connection.close()

    try:
        asyncio.run(run(f"CREATE DATABASE {name}"))
    except (OSError, TimeoutError) as error:
        pytest.skip(f"no PostgreSQL at ANTIPHON_TEST_POSTGRES ({POSTGRES}): {error}")
    try:
        yield POSTGRES.rpartition("/")[0] + f"/{name}"
    finally:
        asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """Yield the address of a Redis of the test's own, which writes all to its disk at once."""
    pytest.importorskip("redis", reason="the extra redis is not installed")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on this machine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": ""}
    durable = {"appendonly": "yes", "appendfsync": "always"}
    given = [f"--{name} {value}" for name, value in (options | durable).items()]
    process = subprocess.Popen(
        [binary, *" ".join(given).split(" ")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: _answers(port))
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait(timeout=30)


def _answers(port: int) -> bool | None:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return None


STORES: Mapping[str, Callable[[Path], AbstractContextManager[str]]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "redis": _redis,
}


@pytest.fixture(params=STORES)
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The options of servers that share a store."""
    with STORES[request.param](tmp_path) as address:
        yield ["--store", address]
