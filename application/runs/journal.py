"""A response's journal: it writes the events of the run, and its end, for readers and the store.

A foreground run has its event log in this process. A run that outlives its client or its process
has the log in the store (docs/decisions/0032): readers see events after they are committed there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from antiphon.application.ports import (
    EventChunk,
    EventLog,
    Lease,
    ResponseStore,
    Store,
    WebhookDelivery,
)
from antiphon.application.runs.event_chunks import PORTION_BYTES, lines_of, make_chunk
from antiphon.application.support.retry import retry
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain.errors import LeaseLost, NotFound
from antiphon.domain.events import EVENT_TYPES, Event
from antiphon.domain.responses.response import Response

MAX_EVENTS = 2048
MAX_BYTES = 512 * 1024
"""The most that waits for a slow store; then the run itself waits. There may be as much again that
is being written: of 48 runs at full speed, all of it took 250 MB when this was twice as much."""

PAUSE_S = 0.001
"""After each long event: a request of another client needs a few iterations of the event loop."""

DELTA_TYPES = frozenset(kind for name, kind in EVENT_TYPES.items() if name.endswith(".delta"))
"""Events that may be written later: no client acts on a single one."""

_encode = msgspec.json.Encoder().encode


class Journal(Protocol):
    """The writer of one run: `append` while it runs, then `finish` or `give_up`.

    The run's first events are in the log before the journal is used. One task at a time uses it.
    """

    def append(self, events: Sequence[Event]) -> Coroutine[Any, Any, None]:
        """Accept events; their numbers continue those of the events before.

        On return, all events but deltas have been written. Cancelling this call loses no events.
        Raises: LeaseLost, now or on the next call, and then writes nothing more; StoreError when
        the store failed for too long, and then `finish` may still be called.
        """

    async def finish(
        self, response: Response, end: Sequence[Event], deliveries: Sequence[WebhookDelivery] = ()
    ) -> bool:
        """Store the terminal state with all unwritten events, then show readers the `end` events.

        Return False, and show nothing, if the run has lost its lease: the response was deleted, or
        has another end. Raises: StoreError when the store failed for too long; readers have seen
        nothing, so the caller may try another end.
        """

    async def give_up(self, end: Sequence[Event]) -> None:
        """Write nothing more to the store: the lease is lost, or the end cannot be stored.

        The current readers here see `end`, which is not stored. If the log is in the store, they
        see instead what the store has. Later readers never see `end`.
        """


class ForegroundJournal(Journal):
    """The journal of a run whose log is in this process; `store` is None for unstored responses."""

    def __init__(
        self,
        log: EventLog,
        lease: Lease,
        store: ResponseStore | None = None,
        *,
        retry_s: float = 10,
    ) -> None:
        self._log = log
        self._lease = lease
        self._store = store
        self._retry_s = retry_s

    def append(self, events: Sequence[Event]) -> Coroutine[Any, Any, None]:
        return self._log.append(self._lease.response_id, events)

    async def finish(
        self, response: Response, end: Sequence[Event], deliveries: Sequence[WebhookDelivery] = ()
    ) -> bool:
        if self._store is not None:
            finish = _RetryableFinish(self._store, self._lease, response, deliveries=deliveries)
            if not await retry(finish, self._retry_s):
                return False
        await self._log.append(self._lease.response_id, end)
        return True

    async def give_up(self, end: Sequence[Event]) -> None:
        await self._log.append(self._lease.response_id, end)
        await self._log.drop(self._lease.response_id)  # later readers see what the store has


class _EventBuffer:
    """Events that wait to be written, each encoded once.

    Deltas are encoded as they come. Other events may repeat a whole answer, megabytes with its log
    probabilities, so `encode_rest` encodes them one by one, and other tasks run in between.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._rest: deque[Event] = deque()
        """Events that are not encoded yet; they follow `events`."""
        self._lines: list[bytes] = []
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self.events or self._rest)

    def add(self, events: Sequence[Event], *, only_deltas: bool = False) -> None:
        if only_deltas and not self._rest:
            self._encode(events)
        else:
            self._rest.extend(events)

    async def encode_rest(self) -> None:
        """Canceling this loses nothing."""
        while self._rest:
            size = self._size
            self._encode([self._rest.popleft()])
            if self._size - size > PORTION_BYTES:
                await asyncio.sleep(PAUSE_S)

    @property
    def is_full(self) -> bool:
        return self._size > MAX_BYTES or len(self.events) > MAX_EVENTS

    def all_events(self) -> list[Event]:
        return [*self.events, *self._rest]

    def to_chunk(self, progress: bytes = b"") -> EventChunk:
        """Return all events as a chunk. There is no rest."""
        first = self.events[0].sequence_number
        return make_chunk(first, len(self.events), self._lines, progress)

    def _encode(self, events: Sequence[Event]) -> None:
        lines = lines_of(events)
        self.events += events
        self._lines.append(lines)
        self._size += len(lines)


class DurableJournal(Journal):
    """The journal of a run whose log is in the store. It adds stored events to the local log.

    Each write stores all buffered events. One write runs at a time, and writes start at least
    `write_every_s` apart. With more than MAX_EVENTS or MAX_BYTES in the buffer, `append` waits.
    A failed write is retried for `retry_s`; meanwhile, readers see no new events.
    """

    def __init__(
        self,
        store: Store,
        log: EventLog,
        lease: Lease,
        *,
        retry_s: float = 10,
        write_every_s: float = 0.010,
        recorder: RunRecorder | None = None,
    ) -> None:
        self._store = store
        self._log = log
        self._lease = lease
        self._retry_s = retry_s
        self._write_every_s = write_every_s
        self._recorder = recorder or RunRecorder()
        self._loop = asyncio.get_running_loop()
        self._buffer = _EventBuffer()
        # The chunk being written, and its events. It may be in the store even if the write failed,
        # so the same chunk is sent again, and later events follow in another one.
        self._unconfirmed: tuple[EventChunk, list[Event]] | None = None
        self._next_write_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._write: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._is_finishing = False
        self._waiter: asyncio.Future[None] | None = None

    async def append(self, events: Sequence[Event]) -> None:
        only_deltas = DELTA_TYPES.issuperset(map(type, events))
        if events:
            self._buffer.add(events, only_deltas=only_deltas)
        self._schedule_write()
        while self._error is None and (
            self._buffer.is_full or (self._has_unwritten and not only_deltas)
        ):
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._error is not None:
            raise self._error

    async def finish(
        self, response: Response, end: Sequence[Event], deliveries: Sequence[WebhookDelivery] = ()
    ) -> bool:
        await self._stop_writing()
        if isinstance(self._error, LeaseLost):
            return False
        last_events = _EventBuffer()
        last_events.add([*self._buffer.all_events(), *end])
        await last_events.encode_rest()
        finish = _RetryableFinish(
            self._store, self._lease, response, last_events.to_chunk(), deliveries
        )

        async def attempt() -> bool:
            await self._send()
            return await finish()

        try:
            is_stored = await retry(attempt, self._retry_s)
        except LeaseLost:
            is_stored = False
        if not is_stored:
            await self.give_up(end)
            return False
        await self._log.append(self._lease.response_id, last_events.events)
        return True

    async def give_up(self, end: Sequence[Event]) -> None:  # noqa: ARG002 - readers use the store
        self._error = self._error or LeaseLost(f"{self._lease.response_id} was given up")
        if self._timer is not None:
            self._timer.cancel()
        if self._write is not None:
            self._write.cancel()
        await self._log.abandon(self._lease.response_id)

    def _take_progress(self) -> bytes:
        progress = self._recorder.progress
        return b"" if progress is None else progress.take()

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._buffer) or self._unconfirmed is not None

    def _schedule_write(self) -> None:
        is_scheduled = self._timer is not None or self._write is not None
        is_over = self._is_finishing or self._error is not None
        if is_scheduled or is_over or not self._buffer:
            return
        wait_s = self._next_write_at - self._loop.time()
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._start_write)
        else:
            self._start_write()

    def _start_write(self) -> None:
        self._timer = None
        self._next_write_at = self._loop.time() + self._write_every_s
        # A separate task: cancelling the run must not cancel its write.
        self._write = self._loop.create_task(self._write_buffer())

    async def _write_buffer(self) -> None:
        try:
            await self._buffer.encode_rest()
            buffer, self._buffer = self._buffer, _EventBuffer()
            self._unconfirmed = buffer.to_chunk(self._take_progress()), buffer.events
            with self._recorder.time_store_write():
                await retry(self._send, self._retry_s, on_failure=self._recorder.note_store_failure)
        except Exception as exc:  # whatever a store raises: `append` raises it again
            self._error = exc
            if isinstance(exc, LeaseLost):
                await self._log.abandon(self._lease.response_id)
        finally:
            self._write = None
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)
        self._schedule_write()

    async def _send(self) -> None:
        if self._unconfirmed is None:
            return
        chunk, events = self._unconfirmed
        if not await self._store.append_events(self._lease, chunk):
            raise LeaseLost(f"{self._lease.response_id} lost its lease")
        self._unconfirmed = None
        await self._log.append(self._lease.response_id, events)

    async def _stop_writing(self) -> None:
        self._is_finishing = True
        if self._timer is not None:
            self._timer.cancel()
        if self._write is not None:
            await asyncio.wait([self._write])


class _RetryableFinish:
    """`Store.finish_response` of one run, which can be retried with the same result."""

    def __init__(
        self,
        store: ResponseStore,
        lease: Lease,
        response: Response,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> None:
        self._store = store
        self._lease = lease
        self._response = response
        self._events = events
        self._deliveries = deliveries
        self._is_retry = False

    async def __call__(self) -> bool:
        """Return whether the store has this end. Raises: StoreError."""
        is_retry, self._is_retry = self._is_retry, True
        if await self._store.finish_response(
            self._lease, self._response, events=self._events, deliveries=self._deliveries
        ):
            return True
        # A failed attempt may have been written nevertheless, and so have ended the lease.
        return is_retry and await self._is_stored()

    async def _is_stored(self) -> bool:
        try:
            stored = await self._store.get_response(self._lease.tenant, self._lease.response_id)
        except NotFound:
            return False
        return _encode(stored) == _encode(self._response)
