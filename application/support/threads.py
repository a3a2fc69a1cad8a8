"""Run long synchronous work in a thread, so that it does not block other requests.

A thread does not make Python faster, but the interpreter switches threads every few milliseconds,
so other tasks can run. The event loop waits that long for each thread that computes. So there are
only two, whatever the number of requests, and a tenant has one of them at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from antiphon.application.support.fair_threads import FairThreads
from antiphon.application.support.tasks import current_tenant

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

_numbers = count()
_order: ContextVar[int | None] = ContextVar("order_of_computation", default=None)
"""The number of this request among those that compute."""

_executor = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="computation")
_threads_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, FairThreads] = WeakKeyDictionary()


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
        threads = _threads_of_loops[loop] = FairThreads(
            MAX_THREADS, per_tenant=MAX_THREADS - 1, executor=_executor
        )
    return await threads.run(current_tenant(), partial(work, *args, **kwargs), priority=order)
