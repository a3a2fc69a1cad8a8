"""Read a run's events out of the store: on other servers, and when its own has forgotten them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from antiphon.application.ports import EventBatches, EventChunk, LogSlice, Store
from antiphon.application.runs.event_chunks import decode_chunk
from antiphon.application.support.retry import retry
from antiphon.domain.errors import CorruptLog, NotFound, StoreError
from antiphon.domain.events import TERMINAL, Error, Event
from antiphon.domain.response import TERMINAL as OVER

BATCH = 256
"""Events that a reader gets at most before others have their turn."""

NEWS_S = 10.0
"""How long to wait for news before the store is asked all the same."""

RETRY_S = 10.0

DELETED = ("response_deleted", "The response was deleted while it was streamed.")
UNAVAILABLE = (
    "stream_unavailable",
    "The events of this response cannot be read to their end; retrieve it without 'stream'.",
)


async def log_of(store: Store, tenant: str, response_id: str) -> list[Event]:
    """Return all that a run has logged so far. Raises: NotFound; CorruptLog; StoreError."""
    found: list[Event] = []
    while True:
        after = found[-1].sequence_number if found else -1
        logged = await store.events(tenant, response_id, after=after)
        for chunk in logged.chunks:
            found += _following(chunk, found[-1].sequence_number if found else -1)
        if logged.ends or not logged.chunks:
            return found


def _following(chunk: EventChunk, last: int) -> list[Event]:
    """Return the chunk's events after number `last`. Raises: CorruptLog."""
    if chunk.first > last + 1:
        raise CorruptLog(f"The events from number {last + 1} to {chunk.first - 1} are missing.")
    return decode_chunk(chunk)[last + 1 - chunk.first :]


class StoredEvents(EventBatches):
    """The events numbered above `after`, up to a terminal event, as the store gets them.

    If the response is deleted meanwhile, or its log is damaged, an `error` event ends the stream:
    no event is ever left out. Cancelling a wait for events loses none of them.
    """

    def __init__(
        self,
        store: Store,
        tenant: str,
        response_id: str,
        *,
        after: int = -1,
        retry_s: float = RETRY_S,
    ) -> None:
        self._store = store
        self._of = (tenant, response_id)
        self._retry_s = retry_s
        self._after = self._last = max(after, -1)
        self._chunks: deque[EventChunk] = deque()
        self._ready: deque[Event] = deque()
        self._ends = False
        self._over = False
        self._yields = False

    @classmethod
    async def open(
        cls, store: Store, tenant: str, response_id: str, *, after: int = -1
    ) -> StoredEvents:
        """Raises: NotFound if the store has no log of such a response."""
        opened = cls(store, tenant, response_id, after=after)
        opened._take(await opened._logged(opened._last))
        return opened

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        if self._yields:  # a long replay would otherwise keep the event loop to itself
            self._yields = False
            await asyncio.sleep(0)
        if not self._ready and not self._over:
            try:
                await self._wait_for_events()
            except (NotFound, StoreError) as exc:
                self._break_off(*await self._reason(exc))
        if not self._ready:
            raise StopAsyncIteration
        batch = [self._ready.popleft() for _ in range(min(BATCH, len(self._ready)))]
        self._yields = len(batch) == BATCH
        return batch

    async def aclose(self) -> None:
        self._over = True
        self._ready.clear()

    async def _wait_for_events(self) -> None:
        while not self._ready and not self._over:
            if self._chunks:
                self._read(self._chunks.popleft())
            elif self._ends:
                await self._check_end()
                self._over = True
            else:
                logged = await self._logged(self._last)
                self._take(logged)
                if not logged.chunks and not logged.ends:
                    await retry(self._news, self._retry_s)

    async def _check_end(self) -> None:
        """Raises: CorruptLog where a log ends without a terminal event, as no run does."""
        # Nothing follows `after`: that is the end itself, or past it, or the end is lost.
        past_end = False
        if self._last == self._after >= 0:
            logged = await self._logged(self._after - 1)
            shown = [e for chunk in logged.chunks for e in _following(chunk, self._after - 1)]
            past_end = not shown or isinstance(shown[-1], TERMINAL)
        if not past_end:
            raise CorruptLog(f"The log has no end after number {self._last}.")

    async def _logged(self, after: int) -> LogSlice:
        return await retry(lambda: self._store.events(*self._of, after=after), self._retry_s)

    async def _news(self) -> None:
        await self._store.wait_for_events(*self._of, after=self._last, limit_s=NEWS_S)

    def _take(self, logged: LogSlice) -> None:
        self._chunks.extend(logged.chunks)
        self._ends = logged.ends

    def _read(self, chunk: EventChunk) -> None:
        events = _following(chunk, self._last)
        if events:
            self._ready.extend(events)
            self._last = events[-1].sequence_number
            self._over = isinstance(events[-1], TERMINAL)

    async def _reason(self, exc: NotFound | StoreError) -> tuple[str, str]:
        if isinstance(exc, StoreError):
            return UNAVAILABLE
        try:
            await self._store.get(*self._of)
        except NotFound:
            return DELETED
        except StoreError:
            pass
        return UNAVAILABLE

    def _break_off(self, code: str, message: str) -> None:
        self._over = True
        # No event of the run: who resumes after this number must not miss the one that follows.
        self._ready.append(Error(sequence_number=self._last, code=code, message=message))


class FollowedEvents(EventBatches):
    """A run's events from the log of this process and, if that breaks off, on from the store."""

    def __init__(
        self, local: EventBatches, store: Store, tenant: str, response_id: str, *, after: int = -1
    ) -> None:
        self._batches = local
        self._is_local = True
        self._store = store
        self._of = (tenant, response_id)
        self._after = self._last = max(after, -1)
        self._over = False

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]:
        return self

    async def __anext__(self) -> Sequence[Event]:
        try:
            batch = await anext(self._batches)
        except StopAsyncIteration:
            if self._over or not self._is_local or await self._ended_here():
                self._over = True
                raise
            self._is_local = False
            self._batches = StoredEvents(self._store, *self._of, after=self._last)
            batch = await anext(self._batches)
        self._last = batch[-1].sequence_number
        self._over = isinstance(batch[-1], TERMINAL)
        return batch

    async def aclose(self) -> None:
        self._over = True
        await self._batches.aclose()

    async def _ended_here(self) -> bool:
        """Return whether nobody has more: the reader asked for what comes after a whole log."""
        if self._last != self._after:
            return False
        with suppress(NotFound, StoreError):
            over = (await self._store.get(*self._of)).status in OVER
            return over and not await self._is_logged()
        return False

    async def _is_logged(self) -> bool:
        try:
            await self._store.events(*self._of, after=self._last)
        except NotFound:
            return False
        return True
