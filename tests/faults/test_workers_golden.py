"""The golden flows, whose requests reach any of four workers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests import fake_mcp_server
from tests.faults.replicas import Replica
from tests.faults.workers import serving_with_workers
from tests.golden.test_golden_flows import (
    FLOWS_AT,
    PLAYED,
    Playing,
    as_sse,
    played,
    servers,
    streamed,
)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

WORKERS = 4


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Playing]]:
    @contextmanager
    def with_workers(folder: Path, **own: Any) -> Iterator[Replica]:
        config = folder / "antiphon.toml"
        # Paths become strings; all else is written alike in TOML and in JSON.
        lines = (f"{name} = {json.dumps(value, default=str)}" for name, value in own.items())
        config.write_text("\n".join(lines))
        with serving_with_workers(folder, "--config", str(config), count=WORKERS) as server:
            yield server

    with (
        fake_mcp_server.site() as site,
        servers(with_workers, site, tmp_path_factory) as playing,
        ExitStack() as stack,
    ):
        yield {
            web: replace(each, client=stack.enter_context(connecting_anew(each.client)))
            for web, each in playing.items()
        }


def connecting_anew(client: httpx.Client) -> httpx.Client:
    """Return a client with a new connection for each request: it may be to any worker."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=client.base_url, timeout=15, limits=limits)


@pytest.mark.parametrize(("name", "model"), PLAYED)
def test_a_flow_is_told_as_recorded(play: Mapping[str, Playing], name: str, model: str) -> None:
    _, streams = played(play, name, model, streamed)
    for number, events in enumerate(streams, 1):
        assert as_sse(events) == (FLOWS_AT / f"{name}.{model}.{number}.sse").read_text()
