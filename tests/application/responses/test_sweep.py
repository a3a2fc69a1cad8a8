"""Sweeping deletes all expired entries, and periodic work logs each outage once."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec
import pytest

from antiphon.adapters.ids import new_id
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import Lease, NewRun, StoredResponse
from antiphon.application.responses.sweep import MAX_BATCH, Sweep
from antiphon.application.support.periodic import run_periodically
from antiphon.domain.errors import StoreError
from antiphon.domain.responses.response import Response


async def create_finished(store: MemoryStore, *, expires_at: float | None) -> None:
    response = Response(id=new_id("resp"), created_at=1, model="m")
    run = NewRun(owner="srv_1")
    await store.create_response(
        "t", StoredResponse(response=response, expires_at=expires_at, run=run)
    )
    done = msgspec.structs.replace(response, status="completed")
    assert await store.finish_response(Lease(tenant="t", response_id=response.id), done)


async def test_a_sweep_deletes_all_expired_responses_in_several_batches() -> None:
    store = MemoryStore()
    for _ in range(2 * MAX_BATCH + 1):
        await create_finished(store, expires_at=1.0)
    await create_finished(store, expires_at=None)
    await create_finished(store, expires_at=4e9)
    sweep = Sweep(store, keep_events_s=600)
    assert await sweep() == 2 * MAX_BATCH + 1
    assert await sweep() == 0
    assert (await store.get_storage_usage("t")).responses == 2


async def test_periodic_work_logs_an_outage_once_and_its_recovery_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    outcomes = iter([True, False, False, False, True, False, True])
    done = asyncio.Event()

    async def work() -> None:
        outcome = next(outcomes, None)
        if outcome is None:
            done.set()
        elif not outcome:
            raise StoreError("the disk is full")

    task = asyncio.create_task(run_periodically("nothing is swept", work, every_s=0.001))
    async with asyncio.timeout(30):
        await done.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    lines = [record.getMessage() for record in caplog.records if record.name == "antiphon.periodic"]
    assert lines == ["nothing is swept: the disk is full", "recovered: nothing is swept"] * 2
