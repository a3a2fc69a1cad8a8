"""A server that runs batches, of each test its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.application.resources.batch_world import World

from antiphon.adapters.stores.batches.store import SqliteBatches


@pytest.fixture
async def batches() -> AsyncIterator[SqliteBatches]:
    batches = SqliteBatches(None)
    await batches.start()
    yield batches
    await batches.aclose()


@pytest.fixture
def world(batches: SqliteBatches) -> World:
    return World(batches)
