"""The golden flows, whose requests reach either of two replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.golden.test_golden_flows import (
    FLOWS,
    FLOWS_AT,
    PLAYED,
    WEBS,
    Playing,
    as_sse,
    played,
    servers,
    streamed,
)
from tests.ray.cluster import Cluster
from tests.support import fake_mcp_server

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

WEB = "a folder"
"""The application has one web at a time; the flows of the other one are about its failure."""
PLAYED_HERE = [(name, model) for name, model in PLAYED if FLOWS[name].web == WEB]


@pytest.fixture(scope="module")
def play(
    cluster: Cluster, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Playing]]:
    @contextmanager
    def deployed(_folder: Path, **own: Any) -> Iterator[Cluster]:
        paths = {name: str(value) for name, value in own.items() if isinstance(value, Path)}
        cluster.deploy({**settings, **own, **paths})
        yield cluster

    with (
        fake_mcp_server.site() as site,
        servers(deployed, site, tmp_path_factory, webs={WEB: WEBS[WEB]}) as playing,
    ):
        yield playing


@pytest.mark.parametrize(("name", "model"), PLAYED_HERE)
def test_a_flow_is_told_as_recorded(play: Mapping[str, Playing], name: str, model: str) -> None:
    _, streams = played(play, name, model, streamed)
    for number, events in enumerate(streams, 1):
        assert as_sse(events) == (FLOWS_AT / f"{name}.{model}.{number}.sse").read_text()
