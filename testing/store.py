"""What every Store must do."""

from __future__ import annotations

import pytest

from antiphon.application.ports import Store
from antiphon.testing.conversation_store import ConversationStoreContract
from antiphon.testing.idempotency_store import IdempotencyStoreContract
from antiphon.testing.key_store import KeyStoreContract
from antiphon.testing.list_store import ListStoreContract
from antiphon.testing.outbox import OutboxContract
from antiphon.testing.response_store import ResponseStoreContract
from antiphon.testing.run_store import RunStoreContract
from antiphon.testing.shared_values import SharedValuesContract
from antiphon.testing.stored_events import StoredEventsContract
from antiphon.testing.trace_store import TraceStoreContract
from antiphon.testing.usage_store import UsageStoreContract


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
