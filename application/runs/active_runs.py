"""The runs of this process: start, count, cancel and drain them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from antiphon.application.ports import Lease
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain.errors import ServerShuttingDown
from antiphon.domain.responses.response import TERMINAL, Response
from antiphon.domain.responses.response_lists import ResponseSummary

SHUTTING_DOWN = "the server is shutting down"
LEASE_LOST = "the lease is lost"
"""Reasons to cancel a task, other than that the client cancelled the response."""

CANCEL_GRACE_S = 1.0
"""The time that cancelled runs have to end and be stored; another server ends the others."""


R = TypeVar("R", Response, ResponseSummary)


def cancel_once(task: asyncio.Task[None], *reason: str) -> None:
    """Cancel a run, unless it is being cancelled already.

    A second cancellation would interrupt the cleanup of its engine request and its tools.
    """

    def cancel() -> None:
        if not task.cancelling():
            task.cancel(*reason)

    # After the task's first step, which the loop has queued already: a task that is cancelled
    # before its first step runs no line of its coroutine, so its response would never end.
    asyncio.get_running_loop().call_soon(cancel)


class ActiveRuns:
    """The runs of this process and their tasks.

    A response is active from before it is stored until its task has ended. `slots` is the number of
    background responses that may be active, `slots_per_tenant` of them of one tenant (default: all
    of them). WatchLeases gives back a response that this server owns but that is not active.
    """

    def __init__(self, *, slots: int = 64, slots_per_tenant: int | None = None) -> None:
        self._slots = slots
        self.slots_per_tenant = slots if slots_per_tenant is None else slots_per_tenant
        self._active: set[str] = set()
        self._in_slots: dict[str, str] = {}
        self._slots_held: Counter[str] = Counter()
        self._waiting_tenants: Collection[str] = frozenset()
        # Also keeps the tasks from being garbage-collected while they run.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leases: dict[str, Lease] = {}
        self._recorders: dict[str, RunRecorder] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining_stopped = asyncio.Event()
        self._is_cancelling = False
        self.is_closed = False
        self.may_have_waiting_runs = False
        """Whether runs of any tenant may be waiting in the store: new runs queue behind them."""
        self.work_available = asyncio.Event()
        """Set when a run starts to wait or a slot becomes free."""

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._active

    @property
    def free_slots(self) -> int:
        """The number of background runs that may still start."""
        return max(self._slots - len(self._in_slots), 0)

    @property
    def slots_held(self) -> Mapping[str, int]:
        """The number of active background runs of each tenant that has any."""
        return dict(self._slots_held)

    @property
    def has_full_tenants(self) -> bool:
        """Whether a tenant has all the slots that one may have."""
        return any(map(self._is_full, self._slots_held))

    def must_wait(self, tenant: str) -> bool:
        """Return whether a new background run of the tenant waits: for a slot, or for its turn."""
        is_behind = self.may_have_waiting_runs or tenant in self._waiting_tenants
        return is_behind or not self.free_slots or self._is_full(tenant)

    def queue(self, tenant: str) -> None:
        """Note that a run of the tenant waits in the store now."""
        self._waiting_tenants = {*self._waiting_tenants, tenant}
        self.work_available.set()

    def note_leased(self, *, all_slots: bool) -> None:
        """Note that runs were leased, for all free slots or for all runs that could get one."""
        self.may_have_waiting_runs = all_slots
        self._waiting_tenants = frozenset(filter(self._is_full, self._slots_held))

    def _is_full(self, tenant: str) -> bool:
        return self._slots_held[tenant] >= self.slots_per_tenant

    @property
    def leases(self) -> list[Lease]:
        """The leases of the stored responses that run here."""
        return list(self._leases.values())

    def record(self, response_id: str, recorder: RunRecorder) -> None:
        """Take the recorder of a run that was started before it had one."""
        if response_id in self._tasks:
            self._recorders[response_id] = recorder

    def with_metrics(self, response: R) -> R:
        """Return a stored response, or its summary, with its record so far if it runs here."""
        recorder = self._recorders.get(response.id)
        if recorder is None or response.status in TERMINAL:
            return response
        return replace(response, metrics=recorder.snapshot())

    def count_phases(self) -> Mapping[str, int]:
        """Return how many runs are in each phase."""
        return Counter(recorder.phase for recorder in self._recorders.values())

    @property
    def oldest_received_at(self) -> float | None:
        """When the request of the oldest run arrived, in seconds since the epoch."""
        return min((each.received_at for each in self._recorders.values()), default=None)

    @property
    def background(self) -> int:
        """The number of background runs."""
        return len(self._in_slots)

    def check_open(self) -> None:
        """Raises: ServerShuttingDown after `close`."""
        if self.is_closed:
            raise ServerShuttingDown

    def check_not_drained(self) -> None:
        """Raises: ServerShuttingDown if a run that started now would be cancelled at once."""
        if self._is_cancelling:
            raise ServerShuttingDown

    @contextmanager
    def mark_active(self, response_id: str, *, slot_of: str | None = None) -> Iterator[None]:
        """Mark the response as active in this block, and until a task that it starts has ended.

        `slot_of` is the tenant of a background run, which takes a slot.
        """
        if response_id in self._active:
            yield
            return
        self._active.add(response_id)
        self._idle.clear()
        if slot_of is not None:
            self._in_slots[response_id] = slot_of
            self._slots_held[slot_of] += 1
        try:
            yield
        finally:
            if response_id not in self._tasks:
                self._mark_inactive(response_id)

    @contextmanager
    def lend_slot(self, response_id: str) -> Iterator[None]:
        """Let another run have the slot of a background run in this block, where it only waits.

        After it, one more run than there are slots may be active for a while.
        """
        tenant = self._in_slots.get(response_id)
        self._free_slot(response_id)
        try:
            yield
        finally:
            if tenant is not None and response_id in self._active:
                self._in_slots[response_id] = tenant
                self._slots_held[tenant] += 1

    async def start(
        self,
        response_id: str,
        run: Coroutine[Any, Any, None],
        *,
        lease: Lease | None = None,
        recorder: RunRecorder | None = None,
    ) -> asyncio.Task[None]:
        """Start a run inside `mark_active`; `lease` is that of a stored response.

        On return the task has made its first step, so that it can handle a cancellation.
        """
        task = asyncio.create_task(run, name=response_id)
        self._tasks[response_id] = task
        if lease is not None:
            self._leases[response_id] = lease
        if recorder is not None:
            self._recorders[response_id] = recorder
        task.add_done_callback(self._on_done)
        try:
            await asyncio.sleep(0)  # lets the task make its first step
        except asyncio.CancelledError:
            await asyncio.shield(self.cancel(response_id))
            raise
        if self._is_cancelling:
            cancel_once(task, SHUTTING_DOWN)
        return task

    def cancel_soon(self, response_id: str) -> None:
        """Cancel a run, if it runs here, without waiting for its end."""
        if (task := self._tasks.get(response_id)) is not None:
            cancel_once(task)

    async def cancel(self, response_id: str, *reason: str) -> None:
        """Cancel a run and wait for its end, if it runs here."""
        task = self._tasks.get(response_id)
        if task is not None:
            cancel_once(task, *reason)
            await asyncio.wait([task])

    def cancel_lost(self, lease: Lease) -> None:
        """Cancel the run with this lease, which is void, if it still runs here."""
        if self._leases.get(lease.response_id) == lease:
            cancel_once(self._tasks[lease.response_id], LEASE_LOST)

    def close(self) -> None:
        """Let no more runs start."""
        self.is_closed = True

    def stop_draining(self) -> None:
        """Make `drain` stop waiting."""
        self._draining_stopped.set()

    async def drain(self, limit_s: float) -> None:
        """Wait up to `limit_s` for all runs to end, then cancel the others as SHUTTING_DOWN."""
        self.close()
        await _wait_for_any(self._idle, self._draining_stopped, limit_s=limit_s)
        self._is_cancelling = True
        for task in self._tasks.values():
            cancel_once(task, SHUTTING_DOWN)
        await _wait_for_any(self._idle, limit_s=CANCEL_GRACE_S)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        response_id = task.get_name()
        del self._tasks[response_id]
        self._leases.pop(response_id, None)
        self._recorders.pop(response_id, None)
        self._mark_inactive(response_id)

    def _mark_inactive(self, response_id: str) -> None:
        self._active.discard(response_id)
        self._free_slot(response_id)
        if not self._active:
            self._idle.set()

    def _free_slot(self, response_id: str) -> None:
        tenant = self._in_slots.pop(response_id, None)
        if tenant is not None:
            self._slots_held[tenant] -= 1
            if not self._slots_held[tenant]:
                del self._slots_held[tenant]
            self.work_available.set()


async def _wait_for_any(*events: asyncio.Event, limit_s: float) -> None:
    """Return when one of the events is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
