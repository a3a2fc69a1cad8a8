"""End the readers of events when the server shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from antiphon.application.ports import EventBatches
from antiphon.domain.events import Event

MAX_LOOP_TURNS = 8
"""Turns of the event loop in which a log of this process returns the events that it has."""


class ShutdownSignal:
    """A signal that is triggered once, and then ends all waits for events."""

    def __init__(self) -> None:
        self.is_triggered = False
        self.timeouts: set[asyncio.Timeout] = set()
        """The timeouts of the current waits; the signal makes them raise TimeoutError."""

    def trigger(self) -> None:
        self.is_triggered = True
        timeouts, self.timeouts = self.timeouts, set()
        for timeout in timeouts:
            timeout.reschedule(asyncio.get_running_loop().time())


class UntilShutdown(EventBatches):
    """A run's events until the shutdown signal; after it, only those that are ready.

    A run that continues on another server may have its next event much later.
    """

    def __init__(self, batches: EventBatches, shutdown_signal: ShutdownSignal) -> None:
        self._batches = batches
        self._signal = shutdown_signal

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if not self._signal.is_triggered:
            with suppress(TimeoutError):
                return await self._wait_for_batch()
        return await self._ready_batch()

    async def aclose(self) -> None:
        await self._batches.aclose()

    async def _wait_for_batch(self) -> Sequence[Event]:
        """Raises: TimeoutError when the signal comes first."""
        # Waiting for the signal in a second task would cost several times as much as the batch.
        async with asyncio.timeout(None) as timeout:
            self._signal.timeouts.add(timeout)
            try:
                return await self._batches.__anext__()
            finally:
                self._signal.timeouts.discard(timeout)

    async def _ready_batch(self) -> Sequence[Event]:
        task = asyncio.ensure_future(self._batches.__anext__())
        try:
            for _ in range(MAX_LOOP_TURNS):
                if task.done():
                    return task.result()
                await asyncio.sleep(0)
            raise StopAsyncIteration
        finally:
            task.cancel()
