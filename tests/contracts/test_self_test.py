"""The self-test of a store passes while other servers use it."""

from __future__ import annotations

from typing import Any, cast

from tests.contracts.conftest import NewStore

from antiphon.adapters.stores.self_test import round_trips
from antiphon.application.ports import Store


class SweptStore:
    """A store that another server sweeps before each call."""

    def __init__(self, store: Store, other: Store) -> None:
        self._store = store
        self._other = other

    def record_heartbeat(self, owner: str, alive_s: float) -> None:
        self._store.record_heartbeat(owner, alive_s)

    def __getattr__(self, name: str) -> Any:
        async def swept(*args: Any) -> Any:
            await self._other.sweep(keep_events_s=0)
            return await getattr(self._store, name)(*args)

        return swept


async def test_the_self_test_passes_while_another_server_sweeps(new_store: NewStore) -> None:
    store, other = new_store(), new_store()
    await store.start()
    await other.start()
    try:
        assert await round_trips(cast(Store, SweptStore(store, other)))
    finally:
        await other.aclose()
        await store.aclose()
