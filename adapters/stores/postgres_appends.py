"""Appends of all runs of this process, together: each commit waits for the disk.

What comes while one statement is under way shares the next. So the server's disk sets how many
statements there are, and not how many events.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from antiphon.adapters.stores import postgres_statements as sql
from antiphon.adapters.stores.postgres_server import PostgresServer, Row, columns
from antiphon.application.ports import EventChunk, Lease
from antiphon.domain.errors import StoreError

APPENDS_AT_ONCE = 256

BYTES_AT_ONCE = 4_000_000
"""About; one chunk may be larger."""


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
    """`channel` is where other processes hear of them."""

    def __init__(self, server: PostgresServer, channel: str) -> None:
        self._server = server
        self._channel = channel
        self._waiting: list[_Append] = []
        self._writing: asyncio.Task[None] | None = None

    async def append(self, lease: Lease, events: EventChunk) -> bool:
        """Return whether the lease holds; then it is committed. Raises: StoreError."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Append(lease, events, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await done

    async def aclose(self) -> None:
        """Finish what was asked for until now."""
        if self._writing is not None:
            await self._writing

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._settle(self._next())
        finally:
            self._writing = None

    def _next(self) -> list[_Append]:
        """Take what waits, as far as it may share a statement: a run's chunks follow each other."""
        taken: dict[tuple[str, str], _Append] = {}
        left: list[_Append] = []
        size = 0
        for append in self._waiting:
            full = len(taken) >= APPENDS_AT_ONCE or size >= BYTES_AT_ONCE
            if full or append.run in taken:
                left.append(append)
            else:
                taken[append.run] = append
                size += len(append.events.body)
        self._waiting = left
        return list(taken.values())

    async def _settle(self, appends: list[_Append]) -> None:
        try:
            written = await self._write(appends)
        except Exception as error:  # a bug too: all who wait must be told
            for append in appends:
                _tell(append, error=error)
            return
        for place, append in enumerate(appends, 1):
            try:
                _tell(append, result=place in written or await self._has(append))
            except StoreError as error:
                _tell(append, error=error)

    async def _write(self, appends: list[_Append]) -> set[int]:
        rows = await self._server.fetch(
            sql.APPEND,
            *columns([append.row for append in appends], 6),
            self._channel,
            limits=self._server.middle,
            again=True,
        )
        return {row[0] for row in rows}

    async def _has(self, append: _Append) -> bool:
        """Whether the lease holds; the log has these events then. Raises: StoreError."""
        limits = self._server.middle
        rows = await self._server.fetch(
            sql.NEXT_EVENT, *append.run, append.lease.epoch, limits=limits, again=True
        )
        if not rows:
            return False
        [(response, following)] = rows
        events = append.events
        which = (response, events.first, events.count)
        if not await self._server.fetch(sql.HAS_CHUNK, *which, limits=limits, again=True):
            raise out_of_order_error(events, following)
        return True


def out_of_order_error(events: EventChunk, following: int | None) -> StoreError:
    """Return the error of events that are neither the next of a log, nor in it already."""
    if following is None:
        return StoreError("Events were given for a run whose log is not kept.")
    return StoreError(f"Event {events.first} does not follow: {following} is the next of the log.")


def _tell(append: _Append, *, result: bool = False, error: Exception | None = None) -> None:
    done: asyncio.Future[Any] = append.done
    if done.done():  # its caller has left, or was told
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
