"""An event log in this process's memory, bounded in size."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import suppress
from itertools import islice
from weakref import WeakSet, WeakValueDictionary

import msgspec

from antiphon.application.ports import Clock, EventBatches, EventLog, WriteBatch
from antiphon.application.support.bytes_in_work import BytesInWork, HeldBytes
from antiphon.application.support.event_batches import LONG_RUN, cut_batch
from antiphon.domain.errors import ConcurrencyLimitExceeded, NotFound, ServerOverloaded
from antiphon.domain.events import TERMINAL, Event

BATCH = 64
"""The most events that a reader gets before it yields to the event loop."""

KEEP_BYTES = 64 * 1024 * 1024
EVENT_BYTES = 500
"""An event without the texts that it shares with its response."""

HELD_EVENT_BYTES = 150
"""What an event takes in memory, beside its text."""
LOGPROB_BYTES = 200
"""What each token of an event's log probabilities takes."""
COUNT_EVERY = 256
"""So many events of a log are counted at a time."""

EXPIRE_EVERY_S = 0.1
"""The shortest time between two looks for logs that were kept long enough."""

JOIN_EVERY = 16
"""Every so many events, a reader waits some turns of the event loop to see if more events come."""
JOIN_TURNS = 3
"""Turns of the event loop in which the events of a fast run join a batch, and so share a send."""


class _Log:
    """The events of one run, from number `first` on. They are numbered without gaps.

    Their bytes count while the run writes them and while somebody reads them. `is_stored`: the
    store has them, too.
    """

    __slots__ = (
        *("__weakref__", "bytes", "events", "feeds", "first", "is_over", "waiters"),
        *("counted", "_held", "_sizes", "_wait", "is_stored", "readers"),
    )

    def __init__(self, held: HeldBytes | None = None, *, is_stored: bool = False) -> None:
        self.events: list[Event] = []
        self.first = 0
        self.bytes = 0
        """Its approximate size, once it is over."""
        self.is_over = False
        self.is_stored = is_stored
        self._wait: asyncio.Timeout | None = None
        """The wait of its run for readers."""
        self.waiters: list[asyncio.Future[None]] = []
        self.feeds: list[_Feed] = []
        self.readers: WeakSet[_Reader] = WeakSet()
        self._held = held
        self.counted = 0
        """How many of `events` have been counted."""
        self._sizes: deque[int] = deque()
        """The bytes of each `COUNT_EVERY` of them, and of the rest."""

    def __del__(self) -> None:
        if self._held is not None:
            self._held.release()
        if self.events:
            _free(self.events)

    @property
    def end(self) -> int:
        """The number of the next event."""
        return self.first + len(self.events)

    async def make_room(self) -> None:
        """Count the bytes of new events. If there is little room, forget those that all have read;
        if there is none, wait for readers.

        Raises: ConcurrencyLimitExceeded, ServerOverloaded if they do not read on in time.
        """
        held = self._held
        if held is None:
            return
        while len(self.events) - self.counted >= COUNT_EVERY:
            new = self.events[self.counted : self.counted + COUNT_EVERY]
            self._sizes.append(sum(map(_size_of, new)))
            self.counted += COUNT_EVERY
        while True:
            if held.is_tight:
                self.forget()
            try:
                held.resize(sum(self._sizes))
            except (ConcurrencyLimitExceeded, ServerOverloaded):
                try:
                    async with asyncio.timeout(None) as self._wait:
                        await held.wait_for(sum(self._sizes))
                except TimeoutError:
                    continue  # `read_on` has ended this wait
                finally:
                    self._wait = None
            return

    def read_on(self) -> None:
        """Note that a reader has read: this may be what the run waits for."""
        if self._wait is not None and self.forget():
            self._wait.reschedule(0)

    def forget(self) -> bool:
        """Forget the events that were read, or all that the store has. Return whether any were."""
        position = min((reader.position for reader in self.readers), default=self.end)
        count = (self.counted if self.is_stored else position - self.first) // COUNT_EVERY
        for _ in range(count := min(count, len(self._sizes))):
            self._sizes.popleft()
        if count:
            count *= COUNT_EVERY
            forgotten, self.events = self.events[:count], self.events[count:]
            self.first += count
            self.counted -= count
            _free(forgotten)
            if self._held is not None and self._held.counted:
                self._held.resize(min(sum(self._sizes), self._held.counted))
        return count > 0

    def count_again(self) -> None:
        """Count a log that is over because somebody will read it. Raises as `make_room`."""
        if self._held is not None and not self._held.counted:
            self._held.resize(sum(self._sizes))

    def release(self) -> None:
        """Count nothing anymore, if nobody reads or writes it."""
        if self._held is not None and self.is_over and not self.readers:
            self._held.release()

    def announce(self) -> None:
        """Let the readers know that there are more events, or that there will be none."""
        for feed in self.feeds:
            feed.schedule()
        if self.waiters:
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self.waiters.clear()


def _size_of(event: Event) -> int:
    text = getattr(event, "delta", None) or getattr(event, "text", None) or ""
    size = HELD_EVENT_BYTES + len(text)
    for logprob in getattr(event, "logprobs", None) or ():
        size += LOGPROB_BYTES * (1 + len(logprob.top_logprobs))
    return size


def _free(events: list[Event]) -> None:
    """Free events that nobody has. To free 100,000 at a time would stop the event loop."""
    if len(events) > LONG_RUN:
        with suppress(RuntimeError):  # the loop has ended
            asyncio.get_running_loop().call_soon(_free_in_portions, events)


def _free_in_portions(events: list[Event]) -> None:
    del events[-LONG_RUN:]
    if events:
        asyncio.get_running_loop().call_soon(_free_in_portions, events)


_encode = msgspec.json.Encoder().encode

_CLOSED = _Log()
_CLOSED.is_over = True


class _Rounds:
    """Writes the events of all logs to the readers that are fed, once per turn of the loop.

    An engine's step adds events to many logs. One callback for all of them costs much less than
    to wake up a task for each.
    """

    __slots__ = ("_due", "_waiting")

    def __init__(self) -> None:
        self._due: deque[list[_Feed]] = deque([] for _ in range(JOIN_TURNS + 1))
        """The feeds to run in the next turn of the event loop, in the one after it, and so on."""
        self._waiting = 0

    def add(self, feed: _Feed, turns: int) -> None:
        """Run a feed after this many more turns of the event loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting += 1
        self._due[turns].append(feed)

    def _run(self) -> None:
        feeds = self._due.popleft()
        self._due.append([])
        self._waiting -= len(feeds)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        for feed in feeds:
            feed.run()


class _Feed:
    """A reader that gets the events without waiting for them: they are written for it."""

    __slots__ = ("_is_scheduled", "_reader", "_rounds", "_write", "released")

    def __init__(self, reader: _Reader, write: WriteBatch, rounds: _Rounds) -> None:
        self._reader = reader
        self._write = write
        self._rounds = rounds
        self._is_scheduled = False
        self.released: asyncio.Future[Awaitable[None] | None] = (
            asyncio.get_running_loop().create_future()
        )
        """Done when the reader must go on by itself, with what it must await first, if anything."""

    def schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._rounds.add(self, JOIN_TURNS if self._reader.joins else 0)

    def run(self) -> None:
        self._is_scheduled = False
        if self.released.done():
            return
        try:
            batch = self._reader.take()
            unwritten = self._write(batch) if batch else None
        except Exception as exc:
            self.released.set_exception(exc)
            return
        if unwritten is not None or not self._reader.is_caught_up:
            self.released.set_result(unwritten)


class _Reader(EventBatches):
    """One reader's position in a log.

    This is not an async generator, because canceling `anext` would end one. A caller whose wait
    times out can continue where it was.
    """

    __slots__ = ("_log", "_loop", "_rounds", "_yields", "joins", "position")

    def __init__(self, log: _Log, first: int, rounds: _Rounds) -> None:
        self._log = log
        self.position = first
        """The number of the next event that it reads."""
        log.readers.add(self)
        self._rounds = rounds
        self._yields = False
        self.joins = False
        """Whether the run seems to be so fast that a batch should wait for more events. Readers of
        slow runs do not wait, but try it now and then."""
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if self._yields:  # otherwise a long replay would block the event loop
            self._yields = False
            await asyncio.sleep(0)
        while self.position >= self._log.end:
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
            if self.joins:
                for _ in range(JOIN_TURNS):
                    await asyncio.sleep(0)
        if self.position < self._log.first:  # the store has what it was too slow for
            raise StopAsyncIteration
        # Nothing is awaited below, so a reader that is canceled above misses no event.
        return self.take()

    async def forward(self, write: WriteBatch) -> None:
        async for batch in self:
            unwritten = write(batch)
            if unwritten is None and self.is_caught_up:
                unwritten = await self._be_fed(write)
            if unwritten is not None:
                await unwritten

    def take(self) -> Sequence[Event]:
        """Return the events that are ready, at most a batch of them."""
        first, index = self.position, self.position - self._log.first
        if index < 0:
            return ()
        ready = self._log.events[index : index + BATCH]
        batch = cut_batch(ready) if first > LONG_RUN else ready
        is_cut = len(batch) == BATCH or len(batch) < len(ready)
        self.position = first + len(batch)
        self.joins = len(batch) > 1 or not self.position % JOIN_EVERY
        self._yields = is_cut
        self._log.read_on()
        return batch

    @property
    def is_caught_up(self) -> bool:
        """Whether all events so far were read, and more will follow."""
        return self.position == self._log.end and not self._log.is_over

    async def aclose(self) -> None:
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        log, self._log = self._log, _CLOSED
        log.readers.discard(self)
        log.release()

    async def _be_fed(self, write: WriteBatch) -> Awaitable[None] | None:
        """Have the events written from here on, until one cannot be written at once, or the end.

        Return what must be awaited before the next event can be written, if anything.
        """
        log, feed = self._log, _Feed(self, write, self._rounds)
        log.feeds.append(feed)
        try:
            return await feed.released
        finally:
            log.feeds.remove(feed)


class MemoryEventLog(EventLog):
    """Keep running logs, and finished ones for `keep_s` seconds, up to `keep_events` in total.

    Finished logs take about `keep_bytes`: a single response may repeat megabytes of its request.
    Creating a log evicts the finished logs that are too many or too large, starting with the one
    that finished first. Those that are too old go by themselves. What runs, and what is read, draws
    on `bytes_in_work`.
    """

    def __init__(
        self,
        *,
        keep_events: int = 20_000,
        keep_bytes: int = KEEP_BYTES,
        keep_s: float = 600,
        clock: Clock = time.time,
        bytes_in_work: BytesInWork | None = None,
    ) -> None:
        self._bytes_in_work = bytes_in_work or BytesInWork()
        self._keep_events = keep_events
        self._keep_bytes = keep_bytes
        self._keep_s = keep_s
        self._clock = clock
        self._logs: dict[str, _Log] = {}
        self._finished: dict[str, float] = {}
        self._unsized: dict[str, _Log] = {}
        """Those of them whose size is not counted yet: most logs of unstored responses never are,
        because they are dropped at once."""
        self._finished_events = 0
        self._finished_bytes = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._rounds = _Rounds()
        # Readers that have the log of a dropped run open still get its events. Only they keep the
        # log alive.
        self._dropped: WeakValueDictionary[str, _Log] = WeakValueDictionary()

    async def create(self, response_id: str, tenant: str, *, is_stored: bool = False) -> None:
        if self._finished:
            self._evict()
        held = self._bytes_in_work.hold(tenant, "model_output")
        self._logs[response_id] = _Log(held, is_stored=is_stored)

    async def append(self, response_id: str, events: Sequence[Event]) -> None:
        log = self._logs.get(response_id) or self._dropped.get(response_id)
        if log is None or not events:
            return
        log.events.extend(events)
        is_end = type(events[-1]) in TERMINAL
        if is_end:
            self._finish(response_id, log)
        log.announce()
        if not is_end and len(log.events) - log.counted >= COUNT_EVERY:
            await log.make_room()

    async def open(self, response_id: str, *, after: int = -1) -> EventBatches:
        log = self._logs.get(response_id)
        first = max(after, -1) + 1
        if log is None or first < log.first:
            raise NotFound(f"There are no events of response {response_id!r}.")
        log.count_again()
        return _Reader(log, first, self._rounds)

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
        log.announce()

    def _finish(self, response_id: str, log: _Log) -> None:
        log.is_over = True
        log.release()
        if response_id in self._logs:
            self._finished[response_id] = self._clock()
            self._unsized[response_id] = log
            self._schedule_expiry()

    def _count_sizes(self) -> None:
        # Two of them, though many may have ended at the same time: each may be megabytes.
        for response_id in [*islice(self._unsized, 2)]:
            log = self._unsized.pop(response_id)
            # The last event has the whole response, whose texts the other events share.
            log.bytes = len(_encode(log.events[-1])) + EVENT_BYTES * len(log.events)
            self._finished_events += len(log.events)
            self._finished_bytes += log.bytes

    def _evict(self) -> None:
        self._count_sizes()
        while self._finished and (
            self._finished_events > self._keep_events or self._finished_bytes > self._keep_bytes
        ):
            self._remove(next(iter(self._finished)))
        self._expire()

    def _expire(self) -> None:
        keep_since = self._clock() - self._keep_s
        while self._finished:
            response_id, finished_at = next(iter(self._finished.items()))
            if finished_at >= keep_since:
                return
            self._remove(response_id)

    def _schedule_expiry(self) -> None:
        if self._expiry is None and self._finished:
            finished_at = next(iter(self._finished.values()))
            wait_s = max(finished_at + self._keep_s - self._clock(), EXPIRE_EVERY_S)
            self._expiry = asyncio.get_running_loop().call_later(wait_s, self._run_expiry)

    def _run_expiry(self) -> None:
        self._expiry = None
        self._expire()
        self._schedule_expiry()

    def _remove(self, response_id: str) -> None:
        log = self._logs.pop(response_id)
        is_finished = self._finished.pop(response_id, None) is not None
        is_counted = self._unsized.pop(response_id, None) is None
        if is_finished and is_counted:
            self._finished_events -= len(log.events)
            self._finished_bytes -= log.bytes
