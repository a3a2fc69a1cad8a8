"""Every response store keeps its promises."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from antiphon.adapters.stores.memory import MemoryResponseStore
from antiphon.adapters.stores.sqlite import SqliteResponseStore
from antiphon.adapters.testing.response_store import ResponseStoreContract
from antiphon.application.ports import ResponseStore

STORES: Mapping[str, Callable[[Path], ResponseStore]] = {
    "memory": lambda _: MemoryResponseStore(),
    "sqlite": lambda directory: SqliteResponseStore(directory / "antiphon.db"),
}


class TestResponseStore(ResponseStoreContract):
    @pytest.fixture(params=STORES)
    async def store(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> AsyncIterator[ResponseStore]:
        store = STORES[request.param](tmp_path)
        await store.start()
        yield store
        await store.aclose()
