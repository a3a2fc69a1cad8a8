"""The fixtures that the contracts of stores share."""

from __future__ import annotations

import pytest

from antiphon.application.ports import Store


class StoreFixtures:
    """Override `store`; also `another`, if several processes can share a store."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("override this fixture: return an empty store, started")

    @pytest.fixture
    def another(self, store: Store) -> Store:
        """Return a second store on the data of `store`, as another server would open it."""
        return store
