"""Two replicas on a real cluster, which share a PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import STORES
from tests.ray.cluster import Cluster, running_cluster

LEASE_S = 2.0
GRACEFUL_S = 4


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder whose path is short: Ray puts sockets into it."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def settings(folder: Path) -> Iterator[dict[str, Any]]:
    with STORES["postgres"](folder) as address:
        yield {
            "store": address,
            "data_dir": str(folder / "data"),
            "auth": "off",
            "lease_s": LEASE_S,
            "graceful_shutdown_s": GRACEFUL_S,
            "min_replicas": 2,
        }


@pytest.fixture(scope="session")
def cluster(folder: Path, settings: dict[str, Any]) -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with running_cluster(folder) as started:
        started.deploy(settings)
        yield started
