"""The golden flows, whose requests reach any of four workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial

import pytest
from msgspec.structs import replace
from tests.faults.support.workers import connecting_anew, serving_with_settings
from tests.golden.test_golden_flows import (
    FLOWS_AT,
    PLAYED,
    Playing,
    as_sse,
    played,
    servers,
    streamed,
)
from tests.support import fake_mcp_server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

WORKERS = 4


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Playing]]:
    with (
        fake_mcp_server.site() as site,
        servers(partial(serving_with_settings, count=WORKERS), site, tmp_path_factory) as playing,
        ExitStack() as stack,
    ):
        yield {
            web: replace(each, client=stack.enter_context(connecting_anew(each.client)))
            for web, each in playing.items()
        }


@pytest.mark.parametrize(("name", "model"), PLAYED)
def test_a_flow_is_told_as_recorded(play: Mapping[str, Playing], name: str, model: str) -> None:
    _, streams = played(play, name, model, streamed)
    for number, events in enumerate(streams, 1):
        assert as_sse(events) == (FLOWS_AT / f"{name}.{model}.{number}.sse").read_text()
