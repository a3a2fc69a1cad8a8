"""End the readers of events when the server shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress

from antiphon.application.ports import EventBatches, WriteBatch
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

    def end(self, timeout: asyncio.Timeout) -> None:
        """End a timeout with this signal, or now if it was triggered already."""
        if self.is_triggered:
            timeout.reschedule(asyncio.get_running_loop().time())
        else:
            self.timeouts.add(timeout)


class UntilShutdown(EventBatches):
    """A run's events until the shutdown signal; after it, only those that are ready.

    A run that continues on another server may have its next event much later.
    """

    def __init__(self, batches: EventBatches, shutdown_signal: ShutdownSignal) -> None:
        self._batches = batches
        self._signal = shutdown_signal
        self._is_writing = False

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if not self._signal.is_triggered:
            with suppress(TimeoutError):
                return await self._wait_for_batch()
        return await self._ready_batch()

    async def forward(self, write: WriteBatch) -> None:
        if not self._signal.is_triggered:
            with suppress(TimeoutError):
                await self._forward_until_signal(write)
                return
        if not self._is_writing:  # a batch was cut off: the reader must not get those after it
            await super().forward(write)

    async def aclose(self) -> None:
        await self._batches.aclose()

    async def _forward_until_signal(self, write: WriteBatch) -> None:
        """Raises: TimeoutError when the signal comes first."""
        async with asyncio.timeout(None) as timeout:

            async def finish(unwritten: Awaitable[None]) -> None:
                await unwritten
                self._is_writing = False
                self._signal.end(timeout)

            def write_whole(batch: Sequence[Event]) -> Awaitable[None] | None:
                unwritten = write(batch)
                if unwritten is None:
                    return None
                # The signal ends waits for events, and no write.
                self._is_writing = True
                self._signal.timeouts.discard(timeout)
                return finish(unwritten)

            self._signal.end(timeout)
            try:
                await self._batches.forward(write_whole)
            finally:
                self._signal.timeouts.discard(timeout)

    async def _wait_for_batch(self) -> Sequence[Event]:
        """Raises: TimeoutError when the signal comes first."""
        # Waiting for the signal in a second task would cost several times as much as the batch.
        async with asyncio.timeout(None) as timeout:
            self._signal.end(timeout)
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
