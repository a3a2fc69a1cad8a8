"""Contract tests for the port `Store`."""

from __future__ import annotations

import pytest

from antiphon.application.ports import Store
from antiphon.testing.stores.api_keys import KeyStoreContract
from antiphon.testing.stores.conversations import ConversationStoreContract
from antiphon.testing.stores.events import StoredEventsContract
from antiphon.testing.stores.idempotency import IdempotencyStoreContract
from antiphon.testing.stores.lists import ListStoreContract
from antiphon.testing.stores.responses import ResponseStoreContract
from antiphon.testing.stores.runs import RunStoreContract
from antiphon.testing.stores.search import SearchContract
from antiphon.testing.stores.shared_values import SharedValuesContract
from antiphon.testing.stores.traces import TraceStoreContract
from antiphon.testing.stores.usage import UsageStoreContract
from antiphon.testing.stores.webhooks import OutboxContract

__all__ = ["SearchContract", "StoreContract"]


@pytest.mark.asyncio
class StoreContract(
    ResponseStoreContract,
    ConversationStoreContract,
    ListStoreContract,
    RunStoreContract,
    StoredEventsContract,
    IdempotencyStoreContract,
    OutboxContract,
    KeyStoreContract,
    UsageStoreContract,
    SharedValuesContract,
    TraceStoreContract,
):
    """Subclass it where pytest collects tests.

    class TestMyStore(StoreContract):
        @pytest_asyncio.fixture
        async def store(self, tmp_path):
            store = MyStore(tmp_path / "kept")
            await store.start()
            yield store
            await store.aclose()

    If several processes can share a store, also override `another` in the same way: it is a second
    store on the data of `store`.
    """

    async def test_a_working_store_passes_its_check(self, store: Store) -> None:
        await store.check()
        await store.check()
