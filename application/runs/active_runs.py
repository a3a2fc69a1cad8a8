"""The runs of this process: started here, kept alive here, ended from here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.application.ports import Lease
from antiphon.domain.errors import ServerShuttingDown

SERVER_STOPS = "the server stops"
LEASE_LOST = "the lease is lost"
"""Why a run is cancelled that nobody left: it has not been cancelled, it fails, or is not ours."""

ENDING_S = 1.0
"""For runs whose time is up to be ended and kept; what the store does not take in time is left to
whoever takes them."""


def stop(task: asyncio.Task[None], *reason: str) -> None:
    """Cancel a run, unless it is on its way to its end already, which may take it a while: another
    cancellation would break off how it leaves its engine and its tools.
    """

    def cancel() -> None:
        if not task.cancelling():
            task.cancel(*reason)

    # After its first step, which is in the loop's queue already: a task that is cancelled before
    # that never runs a line, and its run has no end.
    asyncio.get_running_loop().call_soon(cancel)


class ActiveRuns:
    """Holds each run's task until it is over: asyncio itself would let it be collected.

    A response is *at work* here from before it is stored until its task is over; `slots` of those
    may run in the background. What this server owns and is not at work, nobody ends.
    """

    def __init__(self, *, slots: int = 64) -> None:
        self._slots = slots
        self._at_work: set[str] = set()
        self._in_slots: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leases: dict[str, Lease] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._is_ending = False
        self.is_closed = False
        self.may_have_waiting_runs = False
        """Whether the store may have runs that nobody runs yet: newcomers stand behind them."""
        self.wanted = asyncio.Event()
        """Set when a run waits or a slot is free: there may be something to take."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._at_work

    @property
    def free_slots(self) -> int:
        """How many more may run in the background."""
        return max(self._slots - len(self._in_slots), 0)

    @property
    def leases(self) -> list[Lease]:
        """Those of the stored responses that run here."""
        return list(self._leases.values())

    def check_open(self) -> None:
        """Raises: ServerShuttingDown once no more runs may begin."""
        if self.is_closed:
            raise ServerShuttingDown

    @contextmanager
    def counted_as_active(self, response_id: str, *, in_slot: bool = False) -> Iterator[None]:
        """Count the response as at work in this block, and while a task runs that it started."""
        if response_id in self._at_work:
            yield
            return
        self._at_work.add(response_id)
        self._idle.clear()
        if in_slot:
            self._in_slots.add(response_id)
        try:
            yield
        finally:
            if response_id not in self._tasks:
                self._rest(response_id)

    async def start(
        self, response_id: str, run: Coroutine[Any, Any, None], *, lease: Lease | None = None
    ) -> asyncio.Task[None]:
        """Start a run; on return it has begun, so that cancelling it brings it to its own end.

        `lease` is that of a stored response. To be called inside `counted_as_active`.
        """
        task = asyncio.create_task(run, name=response_id)
        self._tasks[response_id] = task
        if lease is not None:
            self._leases[response_id] = lease
        task.add_done_callback(self._over)
        try:
            # A task that is cancelled before its first step never runs a line of its coroutine.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.shield(self.cancel(response_id))
            raise
        if self._is_ending:
            stop(task, SERVER_STOPS)
        return task

    async def cancel(self, response_id: str, *reason: str) -> None:
        """Cancel a run and wait for its end, if it runs here."""
        task = self._tasks.get(response_id)
        if task is not None:
            stop(task, *reason)
            await asyncio.wait([task])

    def stop_unleased(self, lease: Lease) -> None:
        """Stop a run that is not ours any more, if it still has this lease."""
        if self._leases.get(lease.response_id) == lease:
            stop(self._tasks[lease.response_id], LEASE_LOST)

    def close(self) -> None:
        """Begin no more runs."""
        self.is_closed = True

    def stop_draining(self) -> None:
        """Let `drain` wait no longer."""
        self._hurry.set()

    async def drain(self, limit_s: float) -> None:
        """Wait for all runs, at most `limit_s`; what is left then ends, and says why."""
        self.close()
        await _one_of(self._idle, self._hurry, limit_s=limit_s)
        self._is_ending = True
        for task in self._tasks.values():
            stop(task, SERVER_STOPS)
        await _one_of(self._idle, limit_s=ENDING_S)

    def _over(self, task: asyncio.Task[None]) -> None:
        response_id = task.get_name()
        del self._tasks[response_id]
        self._leases.pop(response_id, None)
        self._rest(response_id)

    def _rest(self, response_id: str) -> None:
        self._at_work.discard(response_id)
        if response_id in self._in_slots:
            self._in_slots.remove(response_id)
            self.wanted.set()
        if not self._at_work:
            self._idle.set()


async def _one_of(*events: asyncio.Event, limit_s: float) -> None:
    """Return when one of the events has happened, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
