"""Run long synchronous work in a thread, so that it does not block other requests.

A thread does not make Python faster, but the interpreter switches threads every few milliseconds,
so other tasks can run. The event loop waits that long for each thread that computes. So there are
only two, whatever the number of requests, and a tenant has one of them at a time. Long work gives
way to short (see pauses).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from antiphon.application.support.fair_loop import current_tenant
from antiphon.application.support.fair_threads import FairThreads
from antiphon.application.support.pauses import Credit, Pauses
from antiphon.application.support.precedence import Precedence, running_precedence

P = ParamSpec("P")
T = TypeVar("T")

MIN_THREAD_BYTES = 256 * 1024
"""Decoding this much JSON takes about 3 ms; starting a thread costs about 0.1 ms."""

ITEM_BYTES = 2000
"""An item or a tool costs as much as so many bytes, some 20 microseconds, however short it is."""

WALK_BYTES = 200
"""Only looking at an item costs a tenth of that."""

MAX_THREADS = 2
"""One tenant's work is not held up by another's; more would only hold up the event loop."""

MAX_CREDITS = 1000
"""Tenants whose credit is known: the last that computed."""

_numbers = count()
_order: ContextVar[int | None] = ContextVar("order_of_computation", default=None)
"""The number of this request among those that compute."""

_executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="computation")
_threads_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, ComputationThreads] = (
    WeakKeyDictionary()
)


async def run_in_thread(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `work(*args)`; run it in a thread if `size`, in bytes, is large."""
    if size < MIN_THREAD_BYTES:
        return work(*args, **kwargs)
    return await compute_in_thread(work, *args, **kwargs)


async def compute_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `work(*args)`, which computes for long and does not wait for anything.

    Of a tenant's requests, the one that came here first goes first in each of its steps. If each
    step of all were done before the next one, all of them would hold what they decoded.
    """
    order = _order.get()
    if order is None:
        order = next(_numbers)
        _order.set(order)
    loop = asyncio.get_running_loop()
    threads = _threads_of_loops.get(loop)
    if threads is None:
        threads = _threads_of_loops[loop] = ComputationThreads(running_precedence())
    return await threads.compute(current_tenant(), partial(work, *args, **kwargs), priority=order)


class ComputationThreads(FairThreads):
    """The threads of an event loop, in which computations pause for others' short work."""

    def __init__(
        self, precedence: Precedence, *, make_credit: Callable[[], Credit] = Credit
    ) -> None:
        super().__init__(MAX_THREADS, per_tenant=MAX_THREADS - 1, executor=_executor)
        self._precedence = precedence
        self._make_credit = make_credit
        self._credits: OrderedDict[str, Credit] = OrderedDict()

    async def compute(self, tenant: str, work: Callable[[], T], *, priority: int = 0) -> T:
        """Return `work()`, see `compute_in_thread`."""
        pauses = Pauses(self._credit_of(tenant), partial(self._must_give_way, tenant))
        return await self.run(tenant, pauses.run, work, priority=priority)

    def _credit_of(self, tenant: str) -> Credit:
        credit = self._credits.get(tenant)
        if credit is None:
            credit = self._credits[tenant] = self._make_credit()
        self._credits.move_to_end(tenant)
        if len(self._credits) > MAX_CREDITS:
            self._credits.popitem(last=False)
        return credit

    def _must_give_way(self, tenant: str) -> bool:
        # A computation keeps its thread while it pauses: nobody may wait for that.
        return not self.keeps_tenants_out and self._precedence.must_give_way(tenant)
