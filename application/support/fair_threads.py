"""Threads for work that blocks, shared fairly between tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from antiphon.application.support.fair_queue import FairQueue

T = TypeVar("T")


class FairThreads:
    """Runs work in `threads` threads, `per_tenant` of them for one tenant.

    No thread can be stopped: work goes on, and counts, even if its caller is cancelled. Only one
    event loop may use it; those of several may share an `executor`.
    """

    def __init__(
        self,
        threads: int,
        *,
        per_tenant: int,
        name: str = "",
        executor: ThreadPoolExecutor | None = None,
    ) -> None:
        self._threads = executor or ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._slots = FairQueue(threads, per_tenant=per_tenant)

    async def run(self, tenant: str, work: Callable[..., T], *args: Any, priority: int = 0) -> T:
        """Return `work(*args)`, or raise its error, once it is the tenant's turn.

        Of a tenant's work, that with the lowest `priority` goes first.
        """
        await self._slots.acquire(tenant, priority=priority)
        result = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        result.add_done_callback(partial(self._end, tenant))
        return await asyncio.shield(result)

    def _end(self, tenant: str, result: asyncio.Future[Any]) -> None:
        self._slots.release(tenant)
        if not result.cancelled():
            result.exception()  # asyncio would log an error that nobody waited for
