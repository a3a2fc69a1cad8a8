"""The events of this process's runs, in its memory: their size is bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from weakref import WeakValueDictionary

from antiphon.application.ports import Clock, EventBatches, EventLog
from antiphon.domain.errors import NotFound
from antiphon.domain.events import TERMINAL, Event

BATCH = 256
"""Events that a reader gets at most before others have their turn."""

TRY_JOINING = 16
"""Every so many events a reader tries whether waiting for one turn of the loop brings more."""


class _Log:
    """The events of one run. They are numbered densely from 0: an event's number is its index."""

    __slots__ = ("__weakref__", "events", "over", "waiting")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.over = False
        self.waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        for woken in self.waiting:
            if not woken.done():
                woken.set_result(None)
        self.waiting.clear()


_CLOSED = _Log()
_CLOSED.over = True


class _Reader:
    """One reader's place in a log.

    Not an async generator, which is over once an `anext` is cancelled: whoever waits for events
    with a time limit goes on where it was.
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
        if self._yields:  # a long replay would otherwise keep the event loop to itself
            self._yields = False
            await asyncio.sleep(0)
        first = self._next
        while first >= len(self._log.events):
            log = self._log
            if log.over:
                raise StopAsyncIteration
            # Each waits on a future of its own, so that cancelling one reader wakes no other.
            woken = self._loop.create_future()
            log.waiting.append(woken)
            try:
                await woken
            except BaseException:
                if woken in log.waiting:
                    log.waiting.remove(woken)
                raise
            if self._joins:
                await asyncio.sleep(0)
        # Nothing is awaited from here on: whoever is cancelled above has missed no event.
        batch = self._log.events[first : first + BATCH]
        self._next = first + len(batch)
        # What a fast run writes in the loop's next turn shares the batch, and so a send: half the
        # sends, at two thirds of the cost. A slow run is not waited for; a try now and then tells.
        self._joins = len(batch) > 1 or not self._next % TRY_JOINING
        if len(batch) == BATCH:
            self._yields = True
        return batch

    async def aclose(self) -> None:
        self._log = _CLOSED


class MemoryEventLog(EventLog):
    """Running logs are always kept; finished ones for `keep_s`, `keep_events` in all at the most.

    What is over these bounds goes when the next log is created, the longest finished first.
    """

    def __init__(
        self, *, keep_events: int = 20_000, keep_s: float = 600, clock: Clock = time.time
    ) -> None:
        self._keep_events = keep_events
        self._keep_s = keep_s
        self._clock = clock
        self._logs: dict[str, _Log] = {}
        self._finished: dict[str, float] = {}
        self._finished_events = 0
        # A dropped run that still goes on is heard by the readers that have it open: they alone
        # keep its log alive.
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
        if log.waiting:
            log.wake()

    async def open(self, response_id: str, *, after: int = -1) -> EventBatches:
        log = self._logs.get(response_id)
        if log is None:
            raise NotFound(f"There are no events of response {response_id!r}.")
        return _Reader(log, max(after, -1) + 1)

    async def drop(self, response_id: str) -> None:
        log = self._logs.get(response_id)
        if log is None:
            return
        self._forget(response_id)
        if not log.over:
            self._dropped[response_id] = log

    async def abandon(self, response_id: str) -> None:
        log = self._logs.get(response_id) or self._dropped.pop(response_id, None)
        if log is None or log.over:
            return
        self._logs.pop(response_id, None)
        log.over = True
        log.wake()

    def _finish(self, response_id: str, log: _Log) -> None:
        log.over = True
        if response_id in self._logs:
            self._finished[response_id] = self._clock()
            self._finished_events += len(log.events)

    def _evict(self) -> None:
        oldest_kept = self._clock() - self._keep_s
        while self._finished:
            response_id, finished_at = next(iter(self._finished.items()))
            if self._finished_events <= self._keep_events and finished_at >= oldest_kept:
                return
            self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        log = self._logs.pop(response_id)
        if self._finished.pop(response_id, None) is not None:
            self._finished_events -= len(log.events)
