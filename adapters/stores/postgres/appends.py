"""Appends to the logs of all runs of this process, in shared statements.

Each commit waits for the disk. Appends that arrive during one statement share the next, so the
number of statements depends on the speed of the disk and not on the number of events.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from antiphon.adapters.stores.postgres import statements as sql
from antiphon.adapters.stores.postgres.server import PostgresServer, Row, columns
from antiphon.application.ports import EventChunk, Lease
from antiphon.application.support.tasks import start_shared_task
from antiphon.domain.errors import StoreError

MAX_APPENDS = 256
"""The most appends that share a statement."""

MAX_APPEND_BYTES = 4_000_000
"""Roughly the most bytes of a statement; a single chunk may be larger."""


class _Append(NamedTuple):
    lease: Lease
    events: EventChunk
    done: asyncio.Future[bool]

    @property
    def run(self) -> tuple[str, str]:
        return self.lease.tenant, self.lease.response_id

    @property
    def row(self) -> Row:
        lease, events = self.lease, self.events
        return (*self.run, lease.epoch, events.first, events.count, events.body)


class PostgresAppends:
    """Appends to logs, and notifies other processes on `channel`."""

    def __init__(self, server: PostgresServer, channel: str) -> None:
        self._server = server
        self._channel = channel
        self._queue: list[_Append] = []
        self._writing: asyncio.Task[None] | None = None

    async def append(self, lease: Lease, events: EventChunk) -> bool:
        """Commit the events and return True, or return False if the lease is void.

        Raises: StoreError.
        """
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(_Append(lease, events, done))
        if self._writing is None:
            self._writing = start_shared_task(self._write_all())
        return await done

    async def aclose(self) -> None:
        """Finish all queued appends."""
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        try:
            while self._queue:
                await self._write_batch(self._next_batch())
        finally:
            self._writing = None

    def _next_batch(self) -> list[_Append]:
        """Remove and return the appends that may share a statement: at most one per run."""
        batch: dict[tuple[str, str], _Append] = {}
        remaining: list[_Append] = []
        size = 0
        for append in self._queue:
            is_full = len(batch) >= MAX_APPENDS or size >= MAX_APPEND_BYTES
            if is_full or append.run in batch:
                remaining.append(append)
            else:
                batch[append.run] = append
                size += len(append.events.body)
        self._queue = remaining
        return list(batch.values())

    async def _write_batch(self, appends: list[_Append]) -> None:
        try:
            written = await self._write(appends)
        except Exception as error:  # any error, even a bug: every caller must get an answer
            for append in appends:
                _resolve(append, error=error)
            return
        for place, append in enumerate(appends, 1):
            try:
                _resolve(append, result=place in written or await self._is_in_log(append))
            except StoreError as error:
                _resolve(append, error=error)

    async def _write(self, appends: list[_Append]) -> set[int]:
        rows = await self._server.fetch(
            sql.APPEND,
            *columns([append.row for append in appends], 6),
            self._channel,
            timeouts=self._server.run_timeouts,
            idempotent=True,
        )
        return {row[0] for row in rows}

    async def _is_in_log(self, append: _Append) -> bool:
        """Return False if the lease is void, True if the log already has the events.

        Raises: StoreError otherwise.
        """
        timeouts = self._server.run_timeouts
        rows = await self._server.fetch(
            sql.GET_LEASED_RUN,
            *append.run,
            append.lease.epoch,
            timeouts=timeouts,
            idempotent=True,
        )
        if not rows:
            return False
        [(response, next_number)] = rows
        events = append.events
        values = (response, events.first, events.count)
        if not await self._server.fetch(sql.HAS_CHUNK, *values, timeouts=timeouts, idempotent=True):
            raise out_of_order_error(events, next_number)
        return True


def out_of_order_error(events: EventChunk, next_number: int | None) -> StoreError:
    """Return the error for events that are neither the next of a log nor in it already."""
    if next_number is None:
        return StoreError("Events cannot be appended: the run has no log.")
    return StoreError(f"Event {events.first} is out of order: the log continues at {next_number}.")


def _resolve(append: _Append, *, result: bool = False, error: Exception | None = None) -> None:
    done: asyncio.Future[Any] = append.done
    if done.done():  # the caller was canceled, or has its answer
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
