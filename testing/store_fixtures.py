"""The stores that the contracts are about."""

from __future__ import annotations

import pytest

from antiphon.application.ports import Store


class StoreFixtures:
    """Override `store`; `another` too, where several processes can share what is kept."""

    @pytest.fixture
    async def store(self) -> Store:
        raise NotImplementedError("override this fixture: return an empty store, started")

    @pytest.fixture
    async def another(self, store: Store) -> Store:
        """A second store on what `store` keeps, as another server has it."""
        return store
