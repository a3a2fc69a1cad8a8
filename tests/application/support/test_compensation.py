"""An undo operation that fails is retried later and blocks no caller."""

from __future__ import annotations

import asyncio

from antiphon.application.support.compensation import Compensation, Undo
from antiphon.domain.errors import StoreError


class UndoStore:
    """A store that is away, and the undo operations that it has done."""

    def __init__(self) -> None:
        self.is_away = True
        self.names: list[str] = []
        self.attempts = 0

    def undo_of(self, name: str) -> Undo:
        async def undo() -> None:
            self.attempts += 1
            if self.is_away:
                raise StoreError("the disk is full")
            self.names.append(name)

        return undo


async def wait_until_done(store: UndoStore, count: int) -> None:
    async with asyncio.timeout(30):
        while len(store.names) < count:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.001)


async def test_failed_undo_operations_run_when_the_store_is_back() -> None:
    store, compensation = UndoStore(), Compensation()
    for name in "abc":
        await compensation.run(store.undo_of(name), log_message="it is there")
    assert store.names == []
    store.is_away = False
    await wait_until_done(store, 3)
    assert store.names == ["a", "b", "c"]


async def test_only_one_undo_operation_is_retried_at_a_time() -> None:
    store, compensation = UndoStore(), Compensation()
    for _ in range(100):
        await compensation.run(store.undo_of("it"), log_message="it is there")
    before = store.attempts
    async with asyncio.timeout(30):
        while store.attempts < before + 2:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.001)
    assert store.attempts < before + 10
    store.is_away = False
    await wait_until_done(store, 100)


async def test_an_undo_operation_with_a_bug_is_logged_and_the_others_run() -> None:
    store, compensation = UndoStore(), Compensation()
    is_broken = False

    async def breaks() -> None:
        raise ValueError("a bug") if is_broken else StoreError("the disk is full")

    await compensation.run(breaks, log_message="it is there")
    await compensation.run(store.undo_of("it"), log_message="it is there")
    is_broken, store.is_away = True, False
    await wait_until_done(store, 1)
    await compensation.run(breaks, log_message="it stays there")
