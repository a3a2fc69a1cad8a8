"""An event log in this process's memory, bounded in size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from weakref import WeakValueDictionary

import msgspec

from antiphon.application.ports import Clock, EventBatches, EventLog
from antiphon.domain.errors import NotFound
from antiphon.domain.events import TERMINAL, Event

BATCH = 256
"""The most events that a reader gets before it yields to the event loop."""

KEEP_BYTES = 64 * 1024 * 1024
EVENT_BYTES = 500
"""An event without the texts that it shares with its response."""

JOIN_EVERY = 16
"""Every so many events, a reader waits one turn of the event loop to see if more events come."""


class _Log:
    """The events of one run. They are numbered from 0 without gaps: the number is the index."""

    __slots__ = ("__weakref__", "bytes", "events", "is_over", "waiters")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.bytes = 0
        """Its approximate size, once it is over."""
        self.is_over = False
        self.waiters: list[asyncio.Future[None]] = []

    def wake_waiters(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


_encode = msgspec.json.Encoder().encode

_CLOSED = _Log()
_CLOSED.is_over = True


class _Reader:
    """One reader's position in a log.

    This is not an async generator, because canceling `anext` would end one. A caller whose wait
    times out can continue where it was.
    """

    __slots__ = ("_joins", "_log", "_loop", "_next", "_yields")

    def __init__(self, log: _Log, first: int) -> None:
        self._log = log
        self._next = first
        self._yields = False
        self._joins = False
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if self._yields:  # otherwise a long replay would block the event loop
            self._yields = False
            await asyncio.sleep(0)
        first = self._next
        while first >= len(self._log.events):
            log = self._log
            if log.is_over:
                raise StopAsyncIteration
            # Each reader waits on its own future, so canceling one reader wakes no other.
            waiter = self._loop.create_future()
            log.waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter in log.waiters:
                    log.waiters.remove(waiter)
                raise
            if self._joins:
                await asyncio.sleep(0)
        # Nothing is awaited below, so a reader that is canceled above misses no event.
        batch = self._log.events[first : first + BATCH]
        self._next = first + len(batch)
        # Events that a fast run writes in the loop's next turn join the batch and share a send:
        # half the sends, at two thirds of the cost. Readers of slow runs do not wait, but try it
        # now and then.
        self._joins = len(batch) > 1 or not self._next % JOIN_EVERY
        if len(batch) == BATCH:
            self._yields = True
        return batch

    async def aclose(self) -> None:
        self._log = _CLOSED


class MemoryEventLog(EventLog):
    """Keep running logs, and finished ones for `keep_s` seconds, up to `keep_events` in total.

    Finished logs take about `keep_bytes`: a single response may repeat megabytes of its request.
    Creating a log evicts the finished logs that exceed these bounds, starting with the one that
    finished first.
    """

    def __init__(
        self,
        *,
        keep_events: int = 20_000,
        keep_bytes: int = KEEP_BYTES,
        keep_s: float = 600,
        clock: Clock = time.time,
    ) -> None:
        self._keep_events = keep_events
        self._keep_bytes = keep_bytes
        self._keep_s = keep_s
        self._clock = clock
        self._logs: dict[str, _Log] = {}
        self._finished: dict[str, float] = {}
        self._finished_events = 0
        self._finished_bytes = 0
        # Readers that have the log of a dropped run open still get its events. Only they keep the
        # log alive.
        self._dropped: WeakValueDictionary[str, _Log] = WeakValueDictionary()

    async def create(self, response_id: str) -> None:
        self._evict()
        self._logs[response_id] = _Log()

    async def append(self, response_id: str, events: Sequence[Event]) -> None:
        log = self._logs.get(response_id) or self._dropped.get(response_id)
        if log is None or not events:
            return
        log.events.extend(events)
        if type(events[-1]) in TERMINAL:
            self._finish(response_id, log)
        if log.waiters:
            log.wake_waiters()

    async def open(self, response_id: str, *, after: int = -1) -> EventBatches:
        log = self._logs.get(response_id)
        if log is None:
            raise NotFound(f"There are no events of response {response_id!r}.")
        return _Reader(log, max(after, -1) + 1)

    async def drop(self, response_id: str) -> None:
        log = self._logs.get(response_id)
        if log is None:
            return
        self._remove(response_id)
        if not log.is_over:
            self._dropped[response_id] = log

    async def abandon(self, response_id: str) -> None:
        log = self._logs.get(response_id) or self._dropped.pop(response_id, None)
        if log is None or log.is_over:
            return
        self._logs.pop(response_id, None)
        log.is_over = True
        log.wake_waiters()

    def _finish(self, response_id: str, log: _Log) -> None:
        log.is_over = True
        if response_id in self._logs:
            # The last event has the whole response, whose texts the other events share.
            log.bytes = len(_encode(log.events[-1])) + EVENT_BYTES * len(log.events)
            self._finished[response_id] = self._clock()
            self._finished_events += len(log.events)
            self._finished_bytes += log.bytes

    def _evict(self) -> None:
        keep_since = self._clock() - self._keep_s
        while self._finished:
            response_id, finished_at = next(iter(self._finished.items()))
            fits = (
                self._finished_events <= self._keep_events
                and self._finished_bytes <= self._keep_bytes
            )
            if fits and finished_at >= keep_since:
                return
            self._remove(response_id)

    def _remove(self, response_id: str) -> None:
        log = self._logs.pop(response_id)
        if self._finished.pop(response_id, None) is not None:
            self._finished_events -= len(log.events)
            self._finished_bytes -= log.bytes
