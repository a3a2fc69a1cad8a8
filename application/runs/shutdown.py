"""Readers that stop with their server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from antiphon.application.ports import EventBatches
from antiphon.domain.events import Event

READY_TURNS = 8
"""Turns of the event loop in which a log of this process gives what it has."""


class ShutdownSignal:
    """Something that happens once, and ends the waits of those who would wait no longer."""

    def __init__(self) -> None:
        self.is_past = False
        self.waits: set[asyncio.Timeout] = set()
        """What raises TimeoutError when the moment comes: each is here while it is waited for."""

    def trigger(self) -> None:
        """Let it happen."""
        self.is_past = True
        waits, self.waits = self.waits, set()
        for wait in waits:
            wait.reschedule(asyncio.get_running_loop().time())


class UntilShutdown(EventBatches):
    """Batches up to a moment; after it, those for which nobody has to wait.

    A run that goes on elsewhere may have its next event much later, or go on for long.
    """

    def __init__(self, batches: EventBatches, shutdown_signal: ShutdownSignal) -> None:
        self._batches = batches
        self._moment = shutdown_signal

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if not self._moment.is_past:
            with suppress(TimeoutError):
                return await self._wait()
        return await self._ready()

    async def aclose(self) -> None:
        await self._batches.aclose()

    async def _wait(self) -> Sequence[Event]:
        """Raises: TimeoutError when the moment comes first."""
        # A task that waits beside another for the moment costs several times what the batch does.
        async with asyncio.timeout(None) as wait:
            self._moment.waits.add(wait)
            try:
                return await self._batches.__anext__()
            finally:
                self._moment.waits.discard(wait)

    async def _ready(self) -> Sequence[Event]:
        following = asyncio.ensure_future(self._batches.__anext__())
        try:
            for _ in range(READY_TURNS):
                if following.done():
                    return following.result()
                await asyncio.sleep(0)
            raise StopAsyncIteration
        finally:
            following.cancel()
