"""Share a number of slots fairly between tenants.

A tenant with a hundred requests and a tenant with one get the same number of turns: waiting
requests are served tenant by tenant (round-robin), and within a tenant by priority, then in the
order of arrival.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from msgspec import Struct

from antiphon.domain.errors import ConcurrencyLimitExceeded, RequestError, ServerOverloaded

UNBOUNDED = 2**30
"""Slots of a queue in which only the tenants have bounds."""


class Place(Struct, frozen=True, order=True):
    """A request's place in the queue. Its `turn` is done once it holds its `slots`."""

    priority: int
    number: int  # unique, so that comparisons end here
    slots: int
    tenant: str
    turn: asyncio.Future[None]

    @property
    def is_taken(self) -> bool:
        return self.turn.done() and not self.turn.cancelled()


def queue_full(waiting: int) -> ConcurrencyLimitExceeded:
    return ConcurrencyLimitExceeded(
        f"{waiting} requests of yours are waiting for this already. Try again when some of them "
        "have ended.",
        code="rate_limit_exceeded",
    )


def server_full(waiting: int) -> ServerOverloaded:
    return ServerOverloaded(
        f"The server is full: {waiting} requests are waiting for this already. Try again later."
    )


class FairQueue:
    """A semaphore with one queue for each tenant.

    `slots` is the number of slots that are held at a time, `per_tenant` of them by one tenant
    (default: all but one, so that a tenant whose work hangs leaves a slot to the others). A tenant
    may have `max_waiting` requests in the queue, and all tenants together `max_waiting_in_all`.
    Only one event loop may use it.
    """

    def __init__(
        self,
        slots: int,
        *,
        per_tenant: int | None = None,
        max_waiting: int | None = None,
        max_waiting_in_all: int | None = None,
    ) -> None:
        self._free = slots
        self.per_tenant = max(1, slots - 1) if per_tenant is None else per_tenant
        """The most slots that a tenant may hold."""
        self._max_waiting = max_waiting
        self._max_waiting_in_all = max_waiting_in_all
        self._held: dict[str, int] = {}
        # In the order of their turns: a tenant that gets a slot goes to the end.
        self._waiting: OrderedDict[str, list[Place]] = OrderedDict()
        self._waiting_count = 0
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """How many requests wait, of all tenants."""
        return self._waiting_count

    def waiting_of(self, tenant: str) -> int:
        return len(self._waiting.get(tenant, ()))

    def held_by(self, tenant: str) -> int:
        return self._held.get(tenant, 0)

    @asynccontextmanager
    async def slot(self, tenant: str, *, priority: int = 0) -> AsyncIterator[None]:
        """Hold a slot in this block.

        Raises: ConcurrencyLimitExceeded, ServerOverloaded, at once.
        """
        await self.acquire(tenant, priority=priority)
        try:
            yield
        finally:
            self.release(tenant)

    async def acquire(self, tenant: str, *, priority: int = 0) -> None:
        """Wait for a slot, which the caller must release.

        Raises: ConcurrencyLimitExceeded if the tenant's queue is full, ServerOverloaded if all
        queues together are; both at once.
        """
        if self.take(tenant):
            return
        place = self.join(tenant, priority=priority)
        try:
            await place.turn
        except asyncio.CancelledError:
            self.leave(place)
            raise

    def release(self, tenant: str, slots: int = 1) -> None:
        """Give slots back; the next requests in turn get them."""
        self._free += slots
        self._held[tenant] -= slots
        if not self._held[tenant]:
            del self._held[tenant]
        if self._waiting:
            self._serve()

    def check_room(self, tenant: str) -> None:
        """Check whether a request of the tenant could wait.

        Raises: ConcurrencyLimitExceeded, ServerOverloaded.
        """
        if self._waiting_count and not (self._free and self._is_in_share(tenant, 1)):
            self._check_bounds(tenant)

    def take(self, tenant: str, slots: int = 1) -> bool:
        """Take slots now. Return False if the request must `join` the queue."""
        held = self._held.get(tenant, 0)
        if self._waiting or slots > self._free or held + slots > self.per_tenant:
            return False
        self._free -= slots
        self._held[tenant] = held + slots
        return True

    def join(
        self,
        tenant: str,
        slots: int = 1,
        *,
        priority: int = 0,
    ) -> Place:
        """Take slots, or a place in the queue; a lower `priority` is earlier in the tenant's queue.

        The caller must `release` the slots once the place's turn is done, or `leave` the place.
        Raises: ConcurrencyLimitExceeded, ServerOverloaded, at once.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = Place(priority, next(self._numbers), slots, tenant, turn)
        self._insert(place)
        self._serve()
        if not turn.done():
            try:
                self._check_bounds(tenant, included=1)
            except RequestError:
                self._remove(place)
                raise
        return place

    def leave(self, place: Place) -> None:
        """Leave the queue, or give the slots back if they came meanwhile."""
        if place.is_taken:
            self.release(place.tenant, place.slots)
        else:
            self._remove(place)
            self._serve()  # those behind may need fewer slots

    def _check_bounds(self, tenant: str, included: int = 0) -> None:
        of_tenant, in_all = self.waiting_of(tenant) - included, self._waiting_count - included
        if self._max_waiting is not None and of_tenant >= self._max_waiting:
            raise queue_full(of_tenant)
        if self._max_waiting_in_all is not None and in_all >= self._max_waiting_in_all:
            raise server_full(in_all)

    def _is_in_share(self, tenant: str, slots: int) -> bool:
        return self.held_by(tenant) + slots <= self.per_tenant

    def _take(self, tenant: str, slots: int) -> None:
        self._free -= slots
        self._held[tenant] = self.held_by(tenant) + slots

    def _serve(self) -> None:
        while self._free > 0 and (place := self._next_place()) is not None:
            if place.slots > self._free:
                return  # it waits for more slots; others that need fewer may not overtake it
            self._remove(place)
            if place.tenant in self._waiting:
                self._waiting.move_to_end(place.tenant)
            if not place.turn.done():  # its request may have been cancelled in this loop iteration
                self._take(place.tenant, place.slots)
                place.turn.set_result(None)

    def _next_place(self) -> Place | None:
        """Return the next place in turn whose tenant may hold more slots."""
        places = (queue[0] for queue in self._waiting.values())
        return next((one for one in places if self._is_in_share(one.tenant, one.slots)), None)

    def _insert(self, place: Place) -> None:
        insort(self._waiting.setdefault(place.tenant, []), place)
        self._waiting_count += 1

    def _remove(self, place: Place) -> None:
        queue = self._waiting.get(place.tenant, [])
        index = bisect_left(queue, place)
        if index == len(queue) or queue[index] is not place:
            return
        del queue[index]
        self._waiting_count -= 1
        if not queue:
            del self._waiting[place.tenant]


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
