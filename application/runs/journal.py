"""How a run writes its events: readers see what was written, and the end once it is kept.

A run in the foreground keeps its log in this process. One that outlives its client, or its process,
has it in the store (docs/decisions/0032): its events are shown after they were committed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from antiphon.application.ports import EventChunk, EventLog, Lease, Store, WebhookDelivery
from antiphon.application.runs.event_chunks import chunk, lines_of
from antiphon.application.support.retry import retry
from antiphon.domain.errors import LeaseLost, NotFound
from antiphon.domain.events import EVENT_TYPES, Event
from antiphon.domain.response import Response

MAX_EVENTS = 4096
MAX_BYTES = 1 << 20
"""How much waits for a slow store before the run does."""

DELTAS = frozenset(kind for name, kind in EVENT_TYPES.items() if name.endswith(".delta"))
"""Events that may wait for others: nobody acts on one of them alone."""

_encode = msgspec.json.Encoder().encode


class Journal(Protocol):
    """What one run writes: `append` while it runs, then `finish`, or `give_up` in its place.

    The run's first events are in its log before it has a journal. One task at a time uses it.
    """

    def append(self, events: Sequence[Event]) -> Coroutine[Any, Any, None]:
        """Take events, whose numbers continue those before them.

        On return anything but deltas has been written. Cancelling this loses none of the events.
        Raises: LeaseLost, now or at the next use, after which nothing more is written; StoreError
        when the store failed for too long: `finish` may be tried then.
        """

    async def finish(
        self, response: Response, end: Sequence[Event], deliveries: Sequence[WebhookDelivery] = ()
    ) -> bool:
        """Keep a terminal state with all that was not written yet, then show `end`, its events.

        False, and nothing shown, if the run is not ours any more: the response is gone, or has
        another end. Raises: StoreError when the store failed for too long; nothing was shown, so
        another end may be tried.
        """

    async def give_up(self, end: Sequence[Event]) -> None:
        """Write nothing more to the store: the run is lost, or its end cannot be kept.

        Who reads here now is shown `end`, which is kept nowhere, unless a store can tell them what
        becomes of the run. Nobody is shown it later.
        """


class ForegroundJournal(Journal):
    """For a run whose log ends with this process; `store` is None if the response is not kept."""

    def __init__(
        self, log: EventLog, lease: Lease, store: Store | None = None, *, retry_s: float = 10
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
            finishing = _Finishing(self._store, self._lease, response, deliveries=deliveries)
            if not await retry(finishing, self._retry_s):
                return False
        await self._log.append(self._lease.response_id, end)
        return True

    async def give_up(self, end: Sequence[Event]) -> None:
        await self._log.append(self._lease.response_id, end)
        await self._log.drop(self._lease.response_id)  # whoever asks later is told what is kept


class _Gathered:
    """Events that wait to be written, encoded once."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.lines: list[bytes] = []
        self.size = 0

    def add(self, events: Sequence[Event]) -> None:
        lines = lines_of(events)
        self.events += events
        self.lines.append(lines)
        self.size += len(lines)

    @property
    def is_much(self) -> bool:
        return self.size > MAX_BYTES or len(self.events) > MAX_EVENTS

    def chunk(self) -> EventChunk:
        return chunk(self.events[0].sequence_number, len(self.events), self.lines)


class DurableJournal(Journal):
    """For a run whose log is in the store, under `lease`. The local log is shown what is there.

    A write takes what has gathered: one is under way at a time, and they begin `write_every_s`
    apart or more. At most MAX_EVENTS or MAX_BYTES gather; then `append` waits. A store that fails
    is asked again for `retry_s`; nothing is shown meanwhile.
    """

    def __init__(
        self,
        store: Store,
        log: EventLog,
        lease: Lease,
        *,
        retry_s: float = 10,
        write_every_s: float = 0.010,
    ) -> None:
        self._store = store
        self._log = log
        self._lease = lease
        self._retry_s = retry_s
        self._write_every_s = write_every_s
        self._loop = asyncio.get_running_loop()
        self._gathered = _Gathered()
        # What a write was begun with. It may be in the store although the write failed, so it is
        # sent again as it was, and what came later goes after it.
        self._sent: tuple[EventChunk, list[Event]] | None = None
        self._next_write_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._write: asyncio.Task[None] | None = None
        self._fault: Exception | None = None
        self._ending = False
        self._woken: asyncio.Future[None] | None = None

    async def append(self, events: Sequence[Event]) -> None:
        if events:
            self._gathered.add(events)
        self._plan_write()
        whole = not DELTAS.issuperset(map(type, events))
        while self._fault is None and (self._gathered.is_much or (whole and self._has_unwritten)):
            self._woken = self._loop.create_future()
            await self._woken
        if self._fault is not None:
            raise self._fault

    async def finish(
        self, response: Response, end: Sequence[Event], deliveries: Sequence[WebhookDelivery] = ()
    ) -> bool:
        await self._stop_writing()
        if isinstance(self._fault, LeaseLost):
            return False
        rest = _Gathered()
        rest.add([*self._gathered.events, *end])
        finishing = _Finishing(self._store, self._lease, response, rest.chunk(), deliveries)

        async def attempt() -> bool:
            await self._send()
            return await finishing()

        try:
            kept = await retry(attempt, self._retry_s)
        except LeaseLost:
            kept = False
        if not kept:
            await self.give_up(end)
            return False
        await self._log.append(self._lease.response_id, rest.events)
        return True

    async def give_up(self, end: Sequence[Event]) -> None:  # noqa: ARG002 - the store tells another
        self._fault = self._fault or LeaseLost(f"{self._lease.response_id} was given up")
        if self._timer is not None:
            self._timer.cancel()
        if self._write is not None:
            self._write.cancel()
        await self._log.abandon(self._lease.response_id)

    @property
    def _has_unwritten(self) -> bool:
        return bool(self._gathered.events) or self._sent is not None

    def _plan_write(self) -> None:
        under_way = self._timer is not None or self._write is not None
        over = self._ending or self._fault is not None
        if under_way or over or not self._gathered.events:
            return
        wait_s = self._next_write_at - self._loop.time()
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._begin_write)
        else:
            self._begin_write()

    def _begin_write(self) -> None:
        self._timer = None
        self._next_write_at = self._loop.time() + self._write_every_s
        gathered, self._gathered = self._gathered, _Gathered()
        self._sent = gathered.chunk(), gathered.events
        # A task of its own: the run may be cancelled while it waits, and what it wrote must not.
        self._write = self._loop.create_task(self._write_sent())

    async def _write_sent(self) -> None:
        try:
            await retry(self._send, self._retry_s)
        except Exception as exc:  # whatever a store raises: the run hears of it
            self._fault = exc
            if isinstance(exc, LeaseLost):
                await self._log.abandon(self._lease.response_id)
        finally:
            self._write = None
            if self._woken is not None and not self._woken.done():
                self._woken.set_result(None)
        self._plan_write()

    async def _send(self) -> None:
        if self._sent is None:
            return
        sent, events = self._sent
        if not await self._store.append(self._lease, sent):
            raise LeaseLost(f"{self._lease.response_id} is not run here any more")
        self._sent = None
        await self._log.append(self._lease.response_id, events)

    async def _stop_writing(self) -> None:
        self._ending = True
        if self._timer is not None:
            self._timer.cancel()
        if self._write is not None:
            await asyncio.wait([self._write])


class _Finishing:
    """One end, to be kept in one or several tries."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        response: Response,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> None:
        self._store = store
        self._lease = lease
        self._response = response
        self._events = events
        self._notices = deliveries
        self._tried = False

    async def __call__(self) -> bool:
        """Return whether this end is kept. Raises: StoreError."""
        again, self._tried = self._tried, True
        if await self._store.finish(
            self._lease, self._response, events=self._events, deliveries=self._notices
        ):
            return True
        # A try that failed may have been heard all the same: then the lease is void because of us.
        return again and await self._is_kept()

    async def _is_kept(self) -> bool:
        try:
            kept = await self._store.get(self._lease.tenant, self._lease.response_id)
        except NotFound:
            return False
        return _encode(kept) == _encode(self._response)
