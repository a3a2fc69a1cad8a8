"""A pool of vLLM servers keeps the promises of an engine, on both wires and with a bare server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.engines.pool_fixtures import TestPool, pool
from tests.upstreams.token_server import WIRES

from antiphon.application.ports import Engine
from antiphon.testing.engine import EngineContract, RequestFactory


class TestVllmHttpEngine(EngineContract):
    @pytest.fixture(params=WIRES)
    async def running(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[TestPool]:
        async with pool(wires=[request.param], folder=tmp_path) as running:
            yield running

    @pytest.fixture
    def engine(self, running: TestPool) -> Engine:
        return running.engine

    @pytest.fixture
    def ask(self, running: TestPool) -> RequestFactory:
        return lambda **sampling: running.request(temperature=0, **sampling)
