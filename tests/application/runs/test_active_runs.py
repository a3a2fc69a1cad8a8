"""The runs of a process: a cancelled run always gets to its own end."""

from __future__ import annotations

import asyncio

from antiphon.application.ports import Lease
from antiphon.application.runs.active_runs import LEASE_LOST, ActiveRuns

LEASE = Lease(tenant="t", response_id="resp_a")


async def test_a_run_that_is_cancelled_as_it_starts_handles_the_cancellation() -> None:
    runs, ends = ActiveRuns(), []

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as exc:
            ends.append(exc.args)

    with runs.mark_active(LEASE.response_id):
        starting = asyncio.ensure_future(runs.start(LEASE.response_id, run(), lease=LEASE))
        # Between the creation of the task and its first step.
        asyncio.get_running_loop().call_soon(runs.cancel_lost, LEASE)
        await asyncio.wait([await starting])
    assert ends == [(LEASE_LOST,)]
    assert len(runs) == 0


async def test_a_run_that_is_ending_is_not_cancelled_again() -> None:
    runs, gate, ends = ActiveRuns(), asyncio.Event(), []

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            ends.append("closed its tools")

    with runs.mark_active(LEASE.response_id):
        task = await runs.start(LEASE.response_id, run(), lease=LEASE)
    for _ in range(3):
        runs.cancel_lost(LEASE)
        await asyncio.sleep(0)
    stopping = asyncio.ensure_future(runs.cancel(LEASE.response_id))
    draining = asyncio.ensure_future(runs.drain(0))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait([task, stopping, draining])
    assert ends == ["closed its tools"]
