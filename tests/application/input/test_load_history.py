"""Histories are loaded a few at a time, because each may have any number of items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.application.event_log_fixtures import run_loop

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.input.history import MAX_LOADS_OF_TENANT, LoadHistory
from antiphon.application.ports import StoredItem
from antiphon.domain.errors import StoreError
from antiphon.domain.history.conversation import Entry
from antiphon.domain.requests.decoding import decode_request


class SlowStore(MemoryStore):
    """A store whose histories come only when `gate` is set; `error` comes in their place."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.loading: list[str] = []
        self.error: StoreError | None = None

    async def list_conversation_items(self, tenant: str, *args: Any) -> list[StoredItem]:
        self.loading.append(tenant)
        await self.gate.wait()
        self.loading.remove(tenant)
        if self.error is not None:
            raise self.error
        return []


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def load(store: SlowStore) -> Callable[[str], Awaitable[list[Entry]]]:
    load_history = LoadHistory(store)
    request = decode_request(b'{"model": "m", "conversation": "conv_1"}').request
    return lambda tenant: load_history(request, tenant=tenant, remembered={})


@asynccontextmanager
async def started(works: Iterable[Awaitable[list[Entry]]]) -> Any:
    tasks = [asyncio.ensure_future(work) for work in works]
    await run_loop()
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_tenant_loads_a_few_at_a_time(store: SlowStore, load: Any) -> None:
    async with started(load("greedy") for _ in range(10)) as loads:
        assert store.loading == ["greedy"] * MAX_LOADS_OF_TENANT
        store.gate.set()
        assert await asyncio.gather(*loads) == [[]] * 10


async def test_other_tenants_need_not_wait(store: SlowStore, load: Any) -> None:
    greedy = [load(f"greedy {n % 5}") for n in range(20)]
    async with started([*greedy, load("other")]):
        assert store.loading.count("other") == 1


async def test_a_load_that_fails_or_is_cancelled_makes_room(store: SlowStore, load: Any) -> None:
    store.error = StoreError("the disk is away")
    async with started(load("greedy") for _ in range(3)) as (cancelled, *failing):
        cancelled.cancel()
        store.gate.set()
        for each in failing:
            with pytest.raises(StoreError):
                await each
    store.error = None
    assert await load("greedy") == []
