"""The runs of this process: started here, kept alive here, cancelled from here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

SERVER_STOPS = "the server stops"
"""Why a run is cancelled that nobody left: it has not been cancelled, it has failed."""


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Do all of `work`, however often the caller is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


class Runs:
    """Holds each run's task until it is over: asyncio itself would let it be collected."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    async def start(self, response_id: str, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a run; on return it has begun, so that cancelling it brings it to its own end."""
        task = asyncio.create_task(run, name=response_id)
        self._tasks[response_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(response_id, None))
        try:
            # A task that is cancelled before its first step never runs a line of its coroutine.
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.shield(self.cancel(response_id))
            raise
        return task

    async def cancel(self, response_id: str) -> bool:
        """Cancel a run and wait for its end. Returns False if it does not run here."""
        task = self._tasks.get(response_id)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        return True

    async def drain(self, limit_s: float) -> None:
        """Wait for all runs, at most `limit_s`; what is left then fails, and says why."""
        if not self._tasks:
            return
        tasks = list(self._tasks.values())
        _, late = await asyncio.wait(tasks, timeout=limit_s)
        for task in late:
            task.cancel(SERVER_STOPS)
        if late:
            await asyncio.wait(late)
