"""Tests of a server with several workers: `ANTIPHON_TEST_WORKERS=4 pytest tests/http`.

What a fixture of a whole module serves is then a process with so many workers, and each request of
its clients has a connection of its own: it may be to any worker. Tests that look into the server,
and those that start one of their own, are as always.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from tests.faults.support.workers import ANEW, serving_with_settings

WORKERS = int(os.environ.get("ANTIPHON_TEST_WORKERS", "1"))
ROOT = Path(__file__).parents[2]

CONNECTIONS = ANEW if WORKERS > 1 else httpx.Limits()
"""The limits of clients."""

NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Whom clients trust that speak to ourselves, without TLS: a client that reads all authorities of
the web, as a variable may tell it to, needs 50 ms for that."""


class RunningWorkers:
    """As `Running`, but nobody can look into it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.api = f"{url}/v1"

    @property
    def container(self) -> NoReturn:
        pytest.skip("it looks into the server, whose workers are other processes")

    @property
    def app(self) -> NoReturn:
        return self.container

    def engine(self, model: str) -> NoReturn:
        return self.container


@contextmanager
def running_workers(folder: Path, **given: Any) -> Iterator[RunningWorkers]:
    """Serve until the block is left. `given` are settings; the default store is a SQLite file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # of tools that tests bring
        settings = {"store": "sqlite", **given}
        with serving_with_settings(folder, count=WORKERS, **settings) as server:
            yield RunningWorkers(server.url)
