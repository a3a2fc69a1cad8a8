"""Share a number of slots fairly between tenants.

A tenant with a hundred requests and a tenant with one get the same number of turns: waiting
requests are served tenant by tenant (round-robin), and within a tenant in the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.domain.errors import QueueFull


class FairQueue:
    """A semaphore with one queue for each tenant.

    `slots` is the number of holders at a time, `per_tenant` of them of one tenant (default: all but
    one, so that a tenant whose work hangs leaves a slot to the others). A tenant may have
    `max_waiting` requests in the queue. Only one event loop may use it.
    """

    def __init__(
        self, slots: int, *, per_tenant: int | None = None, max_waiting: int | None = None
    ) -> None:
        self._free = slots
        self._per_tenant = max(1, slots - 1) if per_tenant is None else per_tenant
        self._max_waiting = max_waiting
        self._held: dict[str, int] = {}
        # In the order of their turns: a tenant that gets a slot goes to the end.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many requests wait, of all tenants."""
        return sum(map(len, self._waiting.values()))

    def waiting_of(self, tenant: str) -> int:
        return len(self._waiting.get(tenant, ()))

    def held_by(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot in this block. Raises: QueueFull, at once."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot, which the caller must release. Raises: QueueFull, at once."""
        if self._may_take(tenant) and tenant not in self._waiting:
            self._take(tenant)
            return
        queue = self._waiting.get(tenant)
        if self._max_waiting is not None and len(queue or ()) >= self._max_waiting:
            raise QueueFull(
                f"{self._max_waiting} requests of yours are waiting for this already. Try again "
                "when some of them have ended."
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if queue is None:
            queue = self._waiting[tenant] = deque()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(tenant)  # the slot came while the request was being cancelled
            else:
                self._remove(tenant, turn)
            raise

    def release(self, tenant: str) -> None:
        """Give a slot back; the next request in turn gets it."""
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._serve()

    def _may_take(self, tenant: str) -> bool:
        return self._free > 0 and self.held_by(tenant) < self._per_tenant

    def _take(self, tenant: str) -> None:
        self._free -= 1
        self._held[tenant] = self.held_by(tenant) + 1

    def _serve(self) -> None:
        while self._free and (tenant := self._next_tenant()) is not None:
            queue = self._waiting[tenant]
            turn = queue.popleft()
            self._waiting.move_to_end(tenant)
            if not queue:
                del self._waiting[tenant]
            if not turn.done():  # its request may have been cancelled in this step of the loop
                self._take(tenant)
                turn.set_result(None)

    def _next_tenant(self) -> str | None:
        return next(filter(self._may_take, self._waiting), None)

    def _remove(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant)
        if queue is None or turn not in queue:
            return
        queue.remove(turn)
        if not queue:
            del self._waiting[tenant]


class FairQueues:
    """A FairQueue for each key, such as a host; one exists only while somebody uses it."""

    def __init__(self, slots: int, *, per_tenant: int | None = None) -> None:
        self._slots = slots
        self._per_tenant = per_tenant
        self._queues: dict[str, FairQueue] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._queues)

    @asynccontextmanager
    async def slot(self, key: str, tenant: str) -> AsyncIterator[None]:
        """Hold a slot of this key in this block."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = FairQueue(self._slots, per_tenant=self._per_tenant)
        self._users[key] = self._users.get(key, 0) + 1
        try:
            async with queue.slot(tenant):
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._queues[key]
