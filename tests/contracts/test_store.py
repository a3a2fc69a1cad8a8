"""Every store passes the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from antiphon.application.ports import Store
from antiphon.testing.store import SearchContract, StoreContract


class TestStore(StoreContract, SearchContract):
    @pytest.fixture
    async def store(self, new_store: Callable[[], Store]) -> AsyncIterator[Store]:
        store = new_store()
        await store.start()
        yield store
        await store.aclose()

    @pytest.fixture
    async def another(self, store: Store, new_store: Callable[[], Store]) -> AsyncIterator[Store]:
        another = new_store()
        await another.start()
        yield another
        await another.aclose()
